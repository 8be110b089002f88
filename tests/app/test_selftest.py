"""The self-test against fake engines: one that is as it should be, one whose drafts change its text, one that may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.selftest import ALPHA, overall
from app.selftests import in_words
from app.version import app_version
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

SAMPLES = {"num_samples": 128}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("selftest")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def engine_of(client: Client) -> dict[str, Any]:
    engine: dict[str, Any] = client.get("/api/engines").json()["engines"][0]
    return engine


def selftest(client: Client, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A self-test to its end: the job, and what is told of the engine then."""
    url = f"/api/engines/{engine_of(client)['id']}/selftest"
    job = client.job(client.post(url, json=SAMPLES | body))
    return job, client.get(url).json()


def events(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/events").json()["events"]
    return [each for each in found if each["kind"] == "selftest"]


def test_a_sound_pair_passes_and_is_shown(client: Client) -> None:
    engine = engine_of(client)
    assert engine["selftest"]["state"] == "never"
    assert client.get(f"/api/engines/{engine['id']}/selftest").json()["result"] is None
    job, told = selftest(client)
    assert (job["state"], job["kind"], job["subject"]) == ("succeeded", "selftest", MODEL)
    assert (job["result"]["state"], job["result"]["selftest_id"]) == ("passed", job["id"])
    result = told["result"]
    greedy, seeds, distribution = result["parts"]
    assert [part["state"] for part in result["parts"]] == ["passed"] * 3
    assert [part["name"] for part in result["parts"]] == ["greedy_parity", "seed_parity", "distribution"]
    assert greedy["num_speculative_tokens"] == [1, 4, 8]
    assert (greedy["compared"], greedy["different"], greedy["first_difference"]) == (15, 0, None)
    assert greedy["drafted"] == 5 * 48 * (1 + 4 + 8)  # the fake verifies at every token
    assert (seeds["compared"], seeds["seeds"], seeds["num_speculative_tokens"]) == (20, [1, 2], [4, 8])
    assert len(distribution["tests"]) == 2 * 2 * 3
    assert {(test["rule"], test["token"]) for test in distribution["tests"]} == {
        (rule, token) for rule in ("match", "rejection") for token in (1, 2, 3)
    }
    assert all(test["num_first"] == test["num_second"] == 128 for test in distribution["tests"])
    assert (result["model_hash"], result["drafter_hash"], result["proposer"]) == ("aaaa", "bbbb", "suffix")
    assert result["versions"]["pizarra"] == app_version()
    assert result["versions"]["exactness"] == "bits"
    assert result["started_at"] <= result["finished_at"]
    shown = engine_of(client)["selftest"]
    assert (shown["state"], shown["id"], shown["stale"]) == ("passed", job["id"], False)
    assert shown == {name: value for name, value in told.items() if name != "result"}
    assert (events(client)[0]["severity"], "passed" in events(client)[0]["message"]) == ("info", True)
    assert len(job["log"]) == 3


def test_its_requests_are_ordinary_ones_behind_all_others(client: Client) -> None:
    before = client.get("/api/requests").json()["requests"]
    job, _ = selftest(client, proposer="ngram")
    assert client.logged("queued priority=1000").startswith(f"queued priority=1000 salt='selftest-{job['id']}' n=")
    assert "proposer='ngram'" in client.logged("adaptive=False")
    assert "learn=False" in client.logged("adaptive=False")
    assert client.get("/api/requests").json()["requests"] == before


def test_a_pair_that_lies_is_flagged_wherever_it_is_loaded_again(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with serving(make_settings(home, "lying")) as client:
        client.load()
        job, told = selftest(client)
        assert (job["state"], job["result"]["state"], told["state"]) == ("succeeded", "failed", "failed")
        greedy, seeds, distribution = told["result"]["parts"]
        assert (greedy["state"], seeds["state"], distribution["state"]) == ("failed", "failed", "failed")
        first = greedy["first_difference"]
        assert (first["position"], first["margin"], first["num_speculative_tokens"]) == (1, 1.0, 1)
        assert first["speculative"]["id"] == first["plain"]["id"] + 1
        assert first["plain"]["text"]
        assert first["after"]
        assert (greedy["different"], greedy["compared"]) == (15, 15)
        states = {(test["token"], test["state"]) for test in distribution["tests"]}
        assert states == {(1, "passed"), (2, "failed"), (3, "passed")}
        assert all(test["p_value"] < ALPHA for test in distribution["tests"] if test["token"] == 2)
        [event] = events(client)
        assert event["severity"] == "error"
        assert "the self-test of tiny with suffix failed: greedy_parity failed (15 of 15 differ" in event["message"]
        with client.live("header") as socket:  # the newest one may be a second old

            def header() -> dict[str, Any]:
                data: dict[str, Any] = json.loads(socket.recv(timeout=10))["data"]
                return data

            client.until(lambda: header()["speculation"]["state"] == "failed")
            assert (header()["engines"][0]["selftest"], header()["engines"][0]["selftest_failed"]) == ("failed", True)
    with serving(make_settings(home)) as client:  # the pair is the same, so the verdict is
        client.load()
        assert engine_of(client)["selftest"]["state"] == "failed"
        job, told = selftest(client, proposer="ngram")
        assert job["result"]["state"] == "passed"  # which says nothing of the proposer that failed
        assert (told["state"], told["flagged"], told["proposer"]) == ("failed", True, "suffix")
        assert told["result"]["state"] == "failed"
        assert engine_of(client)["speculation"]["verdict"]["state"] == "failed"
        selftest(client)
        shown = engine_of(client)["selftest"]
        assert (shown["state"], shown["flagged"]) == ("passed", False)
        history = client.get("/api/selftests", params={"model": MODEL}).json()["selftests"]
        assert [each["state"] for each in history] == ["passed", "passed", "failed"]
        assert client.get("/api/selftests?model=other").json() == {"selftests": []}
        assert [each["state"] for each in client.get("/api/selftests?limit=1").json()["selftests"]] == ["passed"]


def test_where_no_bits_are_promised_differences_are_reported_and_the_distribution_decides(tmp_path: Path) -> None:
    """The fake's margins are 1 nat: no near tie, so greedy differences are faults even there."""
    with serving(make_settings(make_home(tmp_path), "vague")) as client:
        client.load()
        _, told = selftest(client)
    greedy, seeds, distribution = told["result"]["parts"]
    assert (greedy["state"], seeds["state"], distribution["state"]) == ("failed", "reported", "failed")
    assert seeds["different"] == seeds["compared"] == 20


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (["passed", "passed", "passed"], "passed"),
        (["reported", "reported", "passed"], "passed"),
        (["passed", "inconclusive", "passed"], "inconclusive"),
        (["inconclusive", "failed", "passed"], "failed"),
    ],
)
def test_the_whole_is_as_good_as_its_parts(states: list[str], whole: str) -> None:
    assert overall([{"state": state} for state in states]) == whole


def test_a_part_in_a_sentence() -> None:
    parity = {"state": "failed", "compared": 8, "different": 2, "drafted": 9}
    where = {"position": 5, "prompt": "json"}
    assert in_words({"name": "seed_parity", **parity, "first_difference": where}) == (
        "seed_parity failed (2 of 8 differ, first at token 5 of json, 9 drafted)"
    )


def test_one_runs_at_a_time_and_can_be_cancelled(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path))) as client:
        client.load()
        url = f"/api/engines/{engine_of(client)['id']}/selftest"
        started = client.post(url, json={"num_samples": 8192}).json()["job_id"]
        assert client.post(url).json()["job_id"] == started
        assert client.get(url).json()["state"] == "running"
        client.until(lambda: client.get(f"/api/jobs/{started}").json()["stage"] == "distribution")
        job = client.get(f"/api/jobs/{started}").json()
        assert (job["unit"], job["message"]) == ("steps", "suffix")
        assert 0 <= job["done"] < job["total"] == 6
        client.post(f"/api/jobs/{started}/cancel")
        ended = client.until(
            lambda: found if (found := client.get(f"/api/jobs/{started}").json())["finished_at"] else None
        )
        assert ended["state"] == "cancelled"
        assert client.get(url).json()["state"] == "never"
        assert events(client) == []
        client.until(lambda: engine_of(client)["stats"]["num_requests_running"] == 0)
        an_engine_that_ends_meanwhile_ends_the_job(client, url)


def an_engine_that_ends_meanwhile_ends_the_job(client: Client, url: str) -> None:
    started = client.post(url, json={"num_samples": 8192})
    client.unload(force=True)
    job = client.job(started)
    assert (job["state"], "unloaded while the request was running" in job["error"]) == ("failed", True)
    assert client.get("/api/selftests").json() == {"selftests": []}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"proposer": "eagle"}, 400, "proposer='eagle': tiny was loaded with ngram, suffix"),
        ({"num_samples": 3}, 400, "num_samples"),
        ({"samples": 3}, 422, "unknown field"),
    ],
)
def test_what_cannot_be_tested(client: Client, body: dict[str, Any], status: int, says: str) -> None:
    engine_id = engine_of(client)["id"]
    response = client.post(f"/api/engines/{engine_id}/selftest", json=body)
    assert (response.status_code, says in response.json()["detail"]) == (status, True), response.text
    assert client.post("/api/engines/nobody/selftest").status_code == 404


def test_what_is_switched_off_or_was_loaded_without_is_not_tested(client: Client) -> None:
    """The last one here: it leaves another engine behind."""
    engine_id = engine_of(client)["id"]
    client.post(f"/api/engines/{engine_id}/speculation", json={"enabled": False})
    response = client.post(f"/api/engines/{engine_id}/selftest")
    assert (response.status_code, "switched off" in response.json()["detail"]) == (409, True)
    client.unload(force=True)
    client.load(speculation="off")
    response = client.post(f"/api/engines/{engine_of(client)['id']}/selftest")
    says = "tiny was loaded without speculation"
    assert (response.status_code, says in response.json()["detail"]) == (409, True), response.text
