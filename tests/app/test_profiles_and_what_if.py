"""Saved load options, what-if estimates with ways out and a learned error bar, benchmarks, and pages of jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.benchmark import Arrivals, figures, repeat_of
from app.pace import Pace
from app.what_if import Holder, learned, to_unload
from db.rows import LoadMeasurementRow
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

pytestmark = pytest.mark.timeout(120)
GIB = 2**30


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("profiles"), MODEL, "second"))) as client:
        yield client


def profiles(client: Client, method: str = "GET", path: str = "", **body: Any) -> dict[str, Any]:
    response = client.request(method, f"/api/models/{MODEL}/profiles{path}", json=body or None)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def sources(found: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    return {each["name"]: (each["value"], each["source"]) for each in found["values"]}


def test_a_load_keeps_its_options_and_a_default_profile_comes_before_them(client: Client) -> None:
    assert sources(profiles(client))["max_num_seqs"] == (16, "built-in")
    assert client.load(max_num_seqs=4)["state"] == "succeeded"
    found = profiles(client)
    assert found["chosen"] == "last used"
    assert sources(found)["max_num_seqs"] == (4, "last used")
    assert found["reload_to_apply"] == []
    found = profiles(client, "PUT", "/quick", options={"max_num_seqs": 2, "idle_unload_s": 60}, default=True)
    assert found["chosen"] == "quick"
    assert sources(found)["max_num_seqs"] == (2, "quick")
    assert sources(found)["dtype"] == ("auto", "built-in")
    # the idle time is changed on a loaded engine: it is no reason to load it anew
    assert found["reload_to_apply"] == [{"name": "max_num_seqs", "loaded": 4, "saved": 2}]
    body = {"profile": "default", "unload_first": [MODEL]}
    assert client.job(client.post(f"/api/models/{MODEL}/load", json=body))["state"] == "succeeded"
    options = client.get("/api/engines").json()["engines"][0]["options"]
    assert (options["max_num_seqs"], options["idle_unload_s"]) == (2, 60)
    assert profiles(client)["reload_to_apply"] == []
    found = profiles(client, "DELETE", "/quick")
    assert (found["chosen"], sources(found)["max_num_seqs"]) == ("last used", (2, "last used"))


def test_profiles_belong_to_the_weights(client: Client) -> None:
    mine = profiles(client)["model_hash"]
    other = client.get("/api/models/second/profiles").json()
    assert len(mine) == 64
    assert other["profiles"] == []


def test_what_is_wrong_with_a_profile_is_told(client: Client) -> None:
    url = f"/api/models/{MODEL}/profiles"
    assert client.put(f"{url}/last used", json={"options": {}}).status_code == 409
    wrong = client.put(f"{url}/x", json={"options": {"max_num_seqs": 0}})
    assert (wrong.status_code, wrong.json()["param"]) == (400, "options")
    assert client.delete(f"{url}/nothing").status_code == 404
    missing = client.post(f"/api/models/{MODEL}/load", json={"profile": "nothing"})
    assert (missing.status_code, missing.json()["param"]) == (404, "profile")


def estimate(client: Client, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.post(f"/api/models/{MODEL}/estimate", json={"options": options}).json()
    return found


def test_an_estimate_that_does_not_fit_names_what_would(client: Client) -> None:
    plain = estimate(client)
    assert (plain["fits"], plain["refusal"], plain["ways_out"]) == (True, None, [])
    parts = ("weights", "drafter", "kv", "workspace", "runtime")
    assert sum(plain[f"{part}_bytes"] for part in parts) == plain["total_bytes"]
    assert plain["learned"]["loads"] >= 1
    assert plain["learned"]["low_bytes"] <= plain["learned"]["high_bytes"]
    wish = {"max_num_seqs": 64, "memory_limit_bytes": plain["total_bytes"] - plain["kv_bytes"] // 2}
    short = estimate(client, **wish, kv_cache_memory_bytes=plain["kv_bytes"])
    assert short["refusal"]["kind"] == "does_not_fit"
    assert short["refusal"]["short_by_bytes"] > 0
    assert short["ways_out"], "something would fit"
    for way in short["ways_out"]:
        instead = estimate(client, **{**wish, "kv_cache_memory_bytes": plain["kv_bytes"], **way["options"]})
        assert instead["fits"], way
        assert instead["total_bytes"] == way["total_bytes"]


def test_a_load_that_does_not_fit_tells_its_kind_the_ways_out_and_the_memory(client: Client) -> None:
    body = {"options": {"memory_limit_bytes": 1000}}
    job = client.job(client.post("/api/models/second/load", json=body))
    assert job["state"] == "failed"
    assert job["result"]["kind"] == "does_not_fit"
    assert [way["kind"] for way in job["result"]["ways_out"]] == ["no_limit"]
    assert job["result"]["memory"]["available_bytes"] > 0


def test_the_error_bar_is_made_of_measured_loads() -> None:
    rows = [LoadMeasurementRow(str(n), "m", "h", n, n, 100, measured) for n, measured in ((1, 80), (2, 130), (3, 90))]
    bar = learned(1000, rows)
    assert bar is not None
    assert (bar.loads, bar.low_bytes, bar.high_bytes, bar.load_s) == (3, 800, 1300, 2)
    assert learned(1000, []) is None


def test_the_smallest_engine_that_is_enough_is_the_one_to_unload() -> None:
    holders = [Holder("big", "1", 8 * GIB), Holder("small", "2", GIB), Holder("middle", "3", 3 * GIB)]
    assert to_unload(holders, lambda freed: freed >= 2 * GIB) == ["middle"]
    assert to_unload(holders, lambda freed: freed >= 9 * GIB) == ["big", "middle"]
    assert to_unload(holders, lambda freed: freed >= 99 * GIB) == []


def test_a_benchmark_measures_and_leaves_out_what_the_engine_does_not_run(client: Client) -> None:
    run = client.get("/api/engines").json()["engines"][0]["id"]
    wish = {"prompt_tokens": 16, "output_tokens": 24, "repeats": 2, "batches": [1, 2, 16], "speculation": "both"}
    job = client.job(client.post(f"/api/engines/{run}/benchmark", json=wish))
    assert job["state"] == "succeeded", job["error"]
    result = job["result"]
    assert result["skipped"] == [{"batch": 16, "reason": "max_num_seqs is 2"}]
    rows = {(row["name"], row["batch"], row["drafts"]): row for row in result["rows"]}
    assert set(rows) == {
        ("ttft_s", 1, False),
        ("prefill_tokens_per_s", 1, False),
        *(("decode_tokens_per_s", batch, drafts) for batch in (1, 2) for drafts in (False, True)),
    }
    for row in rows.values():
        assert row["n"] == 2
        assert 0 < row["low"] <= row["median"] <= row["high"]
    far = client.post(f"/api/engines/{run}/benchmark", json={"prompt_tokens": 500, "output_tokens": 100})
    assert (far.status_code, far.json()["param"]) == (400, "prompt_tokens")


def test_a_benchmark_waits_for_others(client: Client) -> None:
    run = client.get("/api/engines").json()["engines"][0]["id"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "SLOW ENDLESS"}], "max_tokens": 60}
    asking = threading.Thread(target=lambda: client.post("/v1/chat/completions", json=body))
    asking.start()
    client.until(lambda: client.get(f"/api/engines/{run}/now").json()["blockers"])
    wish = {"prompt_tokens": 8, "output_tokens": 8, "repeats": 1, "batches": [1], "speculation": "off", "wait_s": 0.2}
    job = client.job(client.post(f"/api/engines/{run}/benchmark", json=wish))
    asking.join(10)
    assert job["state"] == "failed"
    assert "requests of others still run" in job["error"]


def test_benchmark_figures_are_of_the_time_when_all_decode() -> None:
    early = Arrivals(0.0, [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)])
    late = Arrivals(0.0, [(2.0, 1), (3.0, 2), (4.0, 2), (5.0, 2)])
    found = repeat_of([early, late], prompt_tokens=10)
    assert found.decode_tokens_per_s == (1 + 1 + 2 + 2) / 2.0
    assert found.prefill_tokens_per_s == 2 * 10 / 2.0
    rows = figures(1, False, [found, repeat_of([late], 10)])
    assert [(row["name"], row["low"], row["high"]) for row in rows][1] == ("ttft_s", 1.5, 2.0)


def test_jobs_come_in_pages_with_the_place_to_follow_on_from(client: Client) -> None:
    page = client.get("/api/jobs?limit=2").json()
    assert len(page["jobs"]) == 2
    rest = client.get(f"/api/jobs?limit=100&before={page['next_before']}").json()
    assert rest["next_before"] is None
    ids = [job["id"] for job in page["jobs"] + rest["jobs"]]
    assert ids == [job["id"] for job in client.get("/api/jobs").json()["jobs"]]
    assert {job["kind"] for job in client.get("/api/jobs?kind=benchmark").json()["jobs"]} == {"benchmark"}
    position = client.get("/api/jobs").json()["live_seq"]
    job_id = client.post(f"/api/models/{MODEL}/unload").json()["job_id"]
    client.until(lambda: client.get(f"/api/jobs/{job_id}").json()["finished_at"])
    with client.live("jobs", since={"jobs": position}) as feed:  # who joins late hears all that came since
        first = json.loads(feed.recv(5))
    assert (first["seq"], first["data"]["id"], first["data"]["state"]) == (position + 1, job_id, "running")


def test_the_pace_of_a_job_knows_only_what_it_saw() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.observe("download", 0, 100)
    assert (pace.rate_per_s, pace.eta_s) == (None, None)
    now[0] = 2.0
    pace.observe("download", 20, 100)
    assert (pace.rate_per_s, pace.eta_s) == (10.0, 8.0)
    pace.observe("verify", 0, 100)
    assert pace.rate_per_s is None, "another stage has another speed"
    pace.expected_s = 5.0
    assert pace.eta_s == 3.0
