"""What the Monitor and Overview pages ask: columns by name, bands, latencies, engine runs with causes, the system."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.recorder import EngineSnapshot, engine_row
from app.version import app_version
from engine.protocol import EngineMemory
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.app.test_recorder import _sample, _stats
from tests.db.clock import NOON

PROMPT = {"model": MODEL, "prompt": "hello", "max_tokens": 20}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("monitor")))) as client:
        assert client.load()["state"] == "succeeded"
        for _ in range(3):
            assert client.post("/v1/completions", json=PROMPT).status_code == 200
        yield client


def get(client: Client, path: str, **query: Any) -> dict[str, Any]:
    response = client.get(path, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_an_engines_memory_by_part_and_its_pool_in_use_are_recorded() -> None:
    memory = EngineMemory(
        weights_bytes=300, draft_weights_bytes=40, kv_bytes=1000, workspace_bytes=50, runtime_bytes=60, process_bytes=9
    )
    fresh = EngineSnapshot("r", "tiny", 7, _stats(NOON - 1, 5), memory)
    row = engine_row(fresh, _sample(NOON, {"r": 7}), None, None)
    stated = (row.weights_bytes, row.draft_weights_bytes, row.kv_bytes, row.workspace_bytes, row.runtime_bytes)
    assert stated == (300, 40, 1000, 50, 60)
    assert (row.kv_used_bytes, row.kv_cached_bytes) == (300, 50)  # 30 and 5 of 100 blocks
    silent = EngineSnapshot("r", "tiny", 7, _stats(NOON - 100, 5), memory)
    row = engine_row(silent, _sample(NOON, {"r": 7}), None, None)
    assert (row.weights_bytes, row.kv_used_bytes, row.num_requests_running) == (300, None, None)
    loading = engine_row(EngineSnapshot("r", "tiny", 7, None, None), _sample(NOON, {"r": 7}), None, None)
    assert (loading.weights_bytes, loading.engine_process_bytes) == (None, 70)


def test_only_the_columns_asked_for_come_and_whole_numbers_stay_whole(client: Client) -> None:
    def known() -> dict[str, Any] | None:
        found = get(
            client, "/api/samples", columns="weights_bytes, kv_bytes,host_cpu_percent", bands="host_cpu_percent"
        )
        return found if any(found["columns"]["kv_bytes"]) else None

    found = client.until(known)
    assert set(found["columns"]) == {"weights_bytes", "kv_bytes", "host_cpu_percent"}
    assert set(found["low"]) == set(found["high"]) == {"host_cpu_percent"}
    assert found["columns"]["weights_bytes"][-1] in (10, None)  # as the fake engine states
    assert isinstance(next(v for v in found["columns"]["kv_bytes"] if v is not None), int)
    assert all(isinstance(t, int) for t in found["t"])


def test_the_step_follows_from_the_points_that_are_wanted(client: Client) -> None:
    now = time.time()
    for span, step in ((300, 1), (3600, 5), (86_400, 60), (7 * 86_400, 600), (30 * 86_400, 1800)):
        found = get(client, "/api/samples", since=now - span, until=now, max_points=1500, columns="kv_blocks_used")
        assert found["step_s"] == step
        assert len(found["t"]) <= 1501


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"columns": "kv_blocks_used,nonsense"}, "nonsense"),
        ({"bands": "generation_tokens_per_s"}, "generation_tokens_per_s"),
        ({"since": "5", "until": "4"}, "before until"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(client: Client, query: dict[str, str], said: str) -> None:
    response = client.get("/api/samples", params=query)
    assert response.status_code == 400
    assert said in response.json()["detail"]


def test_latencies_count_each_request_and_each_pair_of_tokens(client: Client) -> None:
    def all_there() -> dict[str, Any] | None:
        found = get(client, "/api/samples/latencies")
        return found if found["ttft"]["count"] >= 3 else None

    found = client.until(all_there)
    ttft, itl = found["ttft"], found["itl"]
    assert ttft["count"] == sum(bucket["count"] for bucket in ttft["buckets"]) == 3
    assert 0 < ttft["p50_s"] <= ttft["p95_s"] <= ttft["p99_s"] < 20
    assert itl["count"] >= 30
    assert all(bucket["low_s"] < bucket["high_s"] for bucket in itl["buckets"])
    nobody = get(client, "/api/samples/latencies", engine_run_id="nobody")
    assert (nobody["ttft"]["count"], nobody["ttft"]["p50_s"], nobody["ttft"]["buckets"]) == (0, None, [])


def test_the_system_tells_of_itself(client: Client) -> None:
    found = get(client, "/api/system")
    assert found["versions"]["pizarra"] == app_version()
    assert {"python", "sqlite", "fastapi"} <= set(found["versions"])
    assert 0 < found["disk_free_bytes"] <= found["disk_total_bytes"]
    assert found["uptime_s"] == pytest.approx(time.time() - found["started_at"], abs=2)
    assert bool(found["gpus"]) != bool(found["gpu_unavailable"])
    assert found["events_24h"]["info"] >= 1  # the load


def test_runs_are_listed_with_why_they_ended(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("runs")))) as client:
        before = time.time()
        client.load()
        (run,) = get(client, "/api/engine-runs", since=before - 5)["runs"]
        assert (run["model_id"], run["state"], run["ended_at"], run["cause"]) == (MODEL, "ready", None, None)
        client.unload()

        def ended() -> dict[str, Any] | None:
            (found,) = get(client, "/api/engine-runs")["runs"]
            return found if found["ended_at"] else None

        assert client.until(ended)["cause"]
        assert get(client, "/api/engine-runs", until=before - 5)["runs"] == []
        client.load()
        client.post("/v1/completions", json=PROMPT | {"prompt": "CRASH"})
        crashed = client.until(
            lambda: next((r for r in get(client, "/api/engine-runs")["runs"] if r["state"] == "failed"), None)
        )
        assert "engine process" in crashed["cause"]
        events = get(client, "/api/events", since=before, until=time.time() + 1)["events"]
        assert {"load", "unload", "engine_failed"} <= {event["kind"] for event in events}
        assert get(client, "/api/events", since=time.time() + 60)["events"] == []
