"""Engines that go by themselves when nobody asks them, and what is told of every one that has gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.devices import DeviceSample, GpuSample
from app.idle import IdleWatch
from app.receipts import with_gpu
from app.supervisor import UnloadReceipt
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

pytestmark = pytest.mark.timeout(120)
GIB = 2**30


@dataclass
class Known:
    """What the watch sees of an engine."""

    idle_unload_s: float | None = 60.0
    idle_since: float | None = None
    model_id: str = MODEL
    supervisor: Any = field(
        default_factory=lambda: SimpleNamespace(
            run_id="r", state="ready", client=SimpleNamespace(num_submitted=0, num_running=0)
        )
    )

    @property
    def idle_unload_at(self) -> float | None:
        if self.idle_unload_s is None or self.idle_since is None:
            return None
        return self.idle_since + self.idle_unload_s


class Watched:
    """A watch over one engine, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now, self.gone = 1000.0, []
        self.engine = Known()
        self.gone = list[str]()
        self.watch = IdleWatch(lambda: [self.engine], self.gone.append, lambda: self.now)  # type: ignore[list-item]

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        self.watch.look()
        return self.gone


def test_an_idle_engine_goes_when_its_time_has_come_and_not_before() -> None:
    watched = Watched()
    assert watched.after(0) == []
    assert watched.engine.idle_unload_at == 1060.0
    assert watched.after(59.9) == []
    assert watched.after(0.1) == [MODEL]


def test_a_request_sets_the_clock_back_even_one_that_came_and_went_between_two_looks() -> None:
    watched = Watched()
    watched.after(0)
    watched.after(50)
    watched.engine.supervisor.client.num_submitted = 1
    assert watched.after(1) == []
    assert watched.engine.idle_unload_at == 1051.0 + 60.0
    assert watched.after(59) == []
    assert watched.after(1) == [MODEL]


def test_a_running_request_holds_the_clock() -> None:
    watched = Watched()
    watched.after(0)
    watched.engine.supervisor.client.num_running = 1
    assert watched.after(1000) == []
    assert watched.engine.idle_unload_at is None, "no countdown while it is busy"
    watched.engine.supervisor.client.num_running = 0
    assert watched.after(59) == []
    assert watched.after(1) == [MODEL]


def test_an_engine_that_is_to_stay_stays_and_a_new_time_begins_anew() -> None:
    watched = Watched()
    watched.engine.idle_unload_s = None
    assert watched.after(10_000) == []
    watched.engine.idle_unload_s = 30.0
    watched.watch.restart(watched.engine)  # type: ignore[arg-type]
    assert watched.after(29) == []
    assert watched.after(1) == [MODEL]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home: Path = make_home(tmp_path_factory.mktemp("idle"), MODEL, "second")
    with serving(make_settings(home, drain_timeout_s=5.0), mount=None) as client:
        yield client


def engine(client: Client, model: str = MODEL) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in client.get("/api/engines").json()["engines"] if each["model_id"] == model
    )
    return found


def told(client: Client, cause: str) -> dict[str, Any]:
    """The newest event of an unload with this cause."""

    def find() -> dict[str, Any] | None:
        events = client.get("/api/events").json()["events"]
        return next((e for e in events if e["kind"] == "unload" and e["data"]["cause"] == cause), None)

    event: dict[str, Any] = client.until(find)
    return event


def test_idle_time_is_changed_on_a_loaded_engine_and_looking_at_it_does_not_set_it_back(client: Client) -> None:
    assert client.load(idle_unload_s=600)["state"] == "succeeded"
    at = client.until(lambda: engine(client)["idle_unload_at"])
    for path in ("/metrics", "/health", "/ready", "/api/models", "/api/jobs"):
        assert client.get(path).status_code == 200
    run = engine(client)["id"]
    assert client.get(f"/api/engines/{run}/now").json()["idle_unload_at"] == at
    kept = client.patch(f"/api/engines/{run}", json={"idle_unload_s": None}).json()
    assert (kept["idle_unload_s"], kept["idle_unload_at"]) == (None, None)
    assert client.patch(f"/api/engines/{run}", json={"idle_unload_s": 3}).status_code == 400
    again = client.patch(f"/api/engines/{run}", json={"idle_unload_s": 900}).json()
    assert again["idle_unload_at"] > at + 200
    with client.live("header") as feed:
        assert f'"idle_unload_at": {again["idle_unload_at"]}' in feed.recv(5)


def test_the_receipt_of_an_unload_tells_its_cause(client: Client) -> None:
    job = client.unload()
    data = told(client, "operator")["data"]
    assert data["held_bytes"] == job["result"]["expected_bytes"] > 10**6
    assert data["freed_bytes"] == data["held_bytes"]
    assert data["seconds"] == job["result"]["seconds"] > 0
    assert job["result"]["cause"] == "operator"


def test_a_load_that_makes_room_evicts_and_reloads_in_place(client: Client) -> None:
    assert client.load()["state"] == "succeeded"
    body = {"options": {}, "unload_first": [MODEL]}
    assert client.job(client.post("/api/models/second/load", json=body))["state"] == "succeeded"
    assert told(client, "evicted")["data"]["model_id"] == MODEL
    first = engine(client, "second")["id"]
    body = {"options": {"max_num_seqs": 3}, "unload_first": ["second"]}
    assert client.job(client.post("/api/models/second/load", json=body))["state"] == "succeeded"
    now = engine(client, "second")
    assert now["id"] != first
    assert now["options"]["max_num_seqs"] == 3


def test_a_busy_engine_names_what_holds_it_and_is_drained_or_forced(client: Client) -> None:
    run = engine(client, "second")["id"]
    body = {"model": "second", "messages": [{"role": "user", "content": "SLOW ENDLESS"}], "max_tokens": 400}
    asking = threading.Thread(target=lambda: client.post("/v1/chat/completions", json=body))
    asking.start()
    blocker = client.until(lambda: client.get(f"/api/engines/{run}/now").json()["blockers"])[0]
    assert blocker["source"] == "chat"
    assert blocker["age_s"] >= 0
    started = client.post("/api/models/second/unload", json={"drain_s": 60})
    job_id = started.json()["job_id"]
    drain = client.until(lambda: job if (job := client.get(f"/api/jobs/{job_id}").json())["stage"] == "drain" else None)
    assert (drain["total"], drain["unit"], drain["message"]) == (60, "seconds", blocker["id"])
    client.post("/api/models/second/unload", json={"force": True})
    done = client.job(started)
    asking.join(10)
    assert done["result"]["lost_requests"] == [blocker["id"]]


def test_a_crash_is_an_unload_with_its_cause_and_what_was_lost(client: Client) -> None:
    assert client.load()["state"] == "succeeded"
    run = engine(client)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "SLOW ENDLESS"}], "max_tokens": 400}
    asking = threading.Thread(target=lambda: client.post("/v1/chat/completions", json=body))
    asking.start()
    blocker = client.until(lambda: client.get(f"/api/engines/{run['id']}/now").json()["blockers"])[0]
    os.kill(run["pid"], signal.SIGKILL)
    data = told(client, "crash")["data"]
    asking.join(10)
    assert data["lost_requests"] == [blocker["id"]]
    assert data["seconds"] is None, "nobody saw how long it took"
    failed = engine(client)
    assert (failed["lost_requests"], failed["failure_kind"]) == ([blocker["id"]], "died")


def sample(t: float, used: int, engine: int | None) -> DeviceSample:
    gpu = GpuSample(0, "G", 100 * GIB, used, None, None, None)
    return DeviceSample(t, 1, 1, 0, None, None, {"r": 7}, {"r": engine}, None, (gpu,), None)


@pytest.mark.parametrize(("listed", "held"), [(18 * GIB, 18 * GIB), (None, 17 * GIB)])
def test_the_receipt_of_a_gpu_is_the_drivers_and_waits_until_memory_is_back(listed: int | None, held: int) -> None:
    later = iter([sample(1.0, 20 * GIB, listed), sample(2.0, 20 * GIB, None), sample(3.0, 3 * GIB, None)])
    newest = [sample(1.0, 20 * GIB, listed)]

    def latest() -> DeviceSample:
        newest[0] = next(later, newest[0])
        return newest[0]

    receipt = UnloadReceipt(freed_bytes=1, expected_bytes=2, seconds=0.1, forced=False)
    found = asyncio.run(with_gpu(receipt, "r", newest[0], latest, patience_s=0.9))
    assert (found.freed_bytes, found.expected_bytes) == (17 * GIB, held)
    assert asyncio.run(with_gpu(receipt, "r", None, latest)) == receipt, "without the driver the host's figures stand"
