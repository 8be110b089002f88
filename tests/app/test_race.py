"""Races: the same tokens or the first other one, what the times say, quiet, cancel, and refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.race_statistics import speedup
from tests.app.harness import Client, make_home, make_settings, serving

CHALK = {"prompt": "CHALK SLOW", "max_tokens": 24, "repeats": 3}


def served(folder: Path, mode: str = "normal", **options: Any) -> Iterator[Client]:
    with serving(make_settings(make_home(folder), mode)) as client:
        assert client.load(**options)["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    yield from served(tmp_path_factory.mktemp("race"))


def url(client: Client) -> str:
    return f"/api/engines/{client.get('/api/engines').json()['engines'][0]['id']}/race"


def race(client: Client, **body: Any) -> dict[str, Any]:
    job = client.job(client.post(url(client), json=body))
    assert job["state"] == "succeeded", job["error"]
    assert (job["kind"], job["done"], job["total"]) == ("race", job["total"], 2 * (1 + body.get("repeats", 5)))
    result: dict[str, Any] = job["result"]
    return result


def test_drafts_that_are_right_win_with_the_same_tokens(client: Client) -> None:
    result = race(client, **CHALK)
    assert result["identity"] == {
        "verdict": "identical",
        "compared": 4,  # three timed runs and the first warm-up
        "different": 0,
        "plain_repeats_differ": False,
        "first_difference": None,
    }
    assert result["speedup"]["low"] <= result["speedup"]["value"] <= result["speedup"]["high"]
    # the fake's plain step gives one token, and four steps with drafts give 1 + 4 + 2 + 1
    assert result["speedup"]["verdict"] == "pays"
    assert [(each["round"], each["way"]) for each in result["runs"]] == [
        (number, way) for number in range(3) for way in ("plain", "speculative")
    ]
    plain, drafts = result["ways"]["plain"], result["ways"]["speculative"]
    speeds = sorted(each["tokens_per_s"] for each in result["runs"] if each["way"] == "plain")
    assert plain["tokens_per_s"] == pytest.approx({"median": speeds[1], "low": speeds[0], "high": speeds[2]})
    ratio = drafts["tokens_per_s"]["median"] / plain["tokens_per_s"]["median"]
    assert result["speedup"]["value"] == pytest.approx(ratio)
    assert (plain["drafted"], plain["mean_acceptance_length"]) == (0, None)
    assert drafts["drafted"] > drafts["accepted"] > 0
    assert drafts["mean_acceptance_length"] == 1 + drafts["accepted"] / drafts["drafts"]
    assert (result["prompt"], result["chat"], result["proposer"]) == ("CHALK SLOW", False, "suffix")
    assert (result["disturbed"], result["waited"], result["other_jobs"]) == (0, False, 0)


def test_the_replay_has_the_answer_and_when_each_part_of_it_came(client: Client) -> None:
    result = race(client, **CHALK)
    asked = {"prompt": CHALK["prompt"], "max_tokens": CHALK["max_tokens"]}
    text = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
    for way, most in (("plain", 1), ("speculative", 4)):
        times = result["replay"][way]["times"]
        assert "".join(part for _, _, part in times) == text
        assert sum(count for _, count, _ in times) == CHALK["max_tokens"]
        assert max(count for _, count, _ in times) == most
        moments = [at for at, _, _ in times]
        assert moments == sorted(moments)


def test_each_run_has_its_own_cache_and_the_same_seed_and_is_no_request_of_a_user(client: Client) -> None:
    before = client.get("/api/requests").json()["requests"]
    result = race(client, messages=[{"role": "user", "content": "CHALK"}], max_tokens=6, repeats=1, temperature=0.7)
    assert isinstance(result["seed"], int)
    assert f"seed={result['seed']}" in client.logged("temperature=0.7")
    salts = [line for line in client.engine_log().splitlines() if "salt='race-" in line]
    assert len(salts) == len(set(salts))
    assert result["chat"] is True
    assert result["speedup"]["verdict"] == "not_enough_data"
    assert result["speedup"]["low"] is None
    assert client.get("/api/requests").json()["requests"] == before


@pytest.mark.parametrize(
    ("mode", "cases"),
    [
        ("vague", [("CHALK NEARTIE", 0.0, "near_tie"), ("CHALK", 0.0, "mismatch"), ("CHALK", 1.0, "may_differ")]),
        ("lying", [("CHALK NEARTIE", 0.0, "mismatch")]),
    ],
)
def test_a_difference_is_told_with_its_place_and_margins(
    tmp_path: Path, mode: str, cases: list[tuple[str, float, str]]
) -> None:
    for client in served(tmp_path, mode):
        for prompt, temperature, verdict in cases:
            found = race(client, prompt=prompt, max_tokens=16, repeats=1, temperature=temperature)["identity"]
            assert (found["verdict"], found["compared"], found["different"]) == (verdict, 2, 2)
            first = found["first_difference"]
            margin = pytest.approx(0.05 if "NEARTIE" in prompt else 1.0)
            assert (first["position"], first["plain_margin"], first["speculative_margin"]) == (5, margin, margin)
            assert first["near_tie"] is ("NEARTIE" in prompt)
            assert first["speculative"]["id"] == first["plain"]["id"] + 1


def test_a_race_waits_for_other_requests_and_can_be_cancelled(client: Client) -> None:
    asked = {"prompt": "HANG"}
    other = threading.Thread(target=lambda: client.post("/v1/completions", json=asked, timeout=60))
    other.start()
    client.until(lambda: client.get("/api/requests?limit=1").json()["requests"][0]["state"] == "queued")
    job_id = client.post(url(client), json={**CHALK, "prompt": "HANG"}).json()["job_id"]
    waiting = client.until(lambda: job if (job := client.get(f"/api/jobs/{job_id}").json())["stage"] else None)
    assert (waiting["stage"], waiting["done"], waiting["message"]) == ("race_waiting", 0, "1")
    refused = client.post(url(client), json=CHALK)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:pizarra:race_running")
    for other_job in ("benchmark", "selftest"):
        refused = client.post(url(client).replace("/race", f"/{other_job}"), json={})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:pizarra:race_running"), other_job
    newest = client.get("/api/requests?limit=1").json()["requests"][0]["id"]
    client.post(f"/api/requests/{newest}/cancel")
    other.join(30)
    client.until(lambda: client.get(f"/api/jobs/{job_id}").json()["stage"] != "race_waiting")
    client.post(f"/api/jobs/{job_id}/cancel")
    job = client.until(lambda: found if (found := client.get(f"/api/jobs/{job_id}").json())["finished_at"] else None)
    assert (job["state"], job["result"]) == ("cancelled", None)
    client.until(lambda: client.get("/api/engines").json()["engines"][0]["stats"]["num_requests_running"] == 0)
    assert race(client, prompt="CHALK", max_tokens=4, repeats=1), "the next one may start"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "a prompt or messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, 400, "a prompt or messages"),
        ({"prompt": "a", "max_tokens": 513}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1}, 400, "max_tokens"),
        ({"prompt": "a", "repeats": 0}, 400, "repeats"),
        ({"prompt": "a", "warm_up": 0}, 400, "warm_up"),
        ({"prompt": "a", "proposer": "eagle"}, 400, "tiny was loaded with ngram, suffix"),
        ({"prompt": "a", "num_speculative_tokens": 9}, 400, "tiny was loaded for at most 8"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature"),
        ({"prompt": "word " * 400}, 400, "context too long"),
        ({"prompt": "a", "speed": 3}, 422, "unknown field 'speed'"),
        ({"messages": [{"role": "nobody", "content": "b"}]}, 400, "role"),
    ],
)
def test_races_that_cannot_be(client: Client, body: dict[str, Any], status: int, says: str) -> None:
    response = client.post(url(client), json=body)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]


def test_without_drafts_there_is_nothing_to_race(client: Client, tmp_path: Path) -> None:
    assert client.post("/api/engines/nobody/race", json=CHALK).status_code == 404
    for plain in served(tmp_path, speculation="off"):
        response = plain.post(url(plain), json=CHALK)
        assert (response.status_code, response.json()["type"]) == (409, "urn:pizarra:no_speculation")


def test_a_race_that_an_engine_does_not_survive_fails_with_the_reason(tmp_path: Path) -> None:
    for other in served(tmp_path):
        job = other.job(other.post(url(other), json={"prompt": "CRASH", "max_tokens": 9}))
        assert job["state"] == "failed"
        assert "ended by signal" in job["error"] or "SIGKILL" in job["error"]


def test_the_interval_holds_the_value_and_says_nothing_of_too_few_rounds() -> None:
    steady = speedup([0.02, 0.021, 0.02, 0.0205], [0.01, 0.0101, 0.0099, 0.01])
    assert (steady.verdict, round(steady.value, 1)) == ("pays", 2.0)
    assert steady.low is not None
    assert steady.high is not None
    assert 1.9 < steady.low <= steady.value <= steady.high < 2.15
    assert speedup([0.01, 0.02, 0.015], [0.015, 0.01, 0.02]).verdict == "unsure"
    assert speedup([0.01, 0.0101, 0.0099], [0.01, 0.01, 0.01]).verdict == "even"
    assert speedup([0.01, 0.01, 0.01], [0.012, 0.012, 0.012]).verdict == "costs"
    assert json.dumps(speedup([0.01], [0.02]).low) == "null"
