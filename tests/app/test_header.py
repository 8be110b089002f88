"""The header's data: what an engine entry says of its model, and memory in parts that add up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.devices import DeviceSample, GpuSample
from app.header import _drafter, _gpu, _memory
from engine.protocol import EngineMemory
from tests.app.harness import MODEL, make_home, make_settings, serving

GIB = 2**30


def engine(device: str) -> Any:
    memory = EngineMemory(weights_bytes=8 * GIB, draft_weights_bytes=GIB, kv_bytes=20 * GIB, workspace_bytes=2 * GIB)
    ready = SimpleNamespace(device=device, memory=memory, proposers=["eagle"], speculation="eagle")
    options = SimpleNamespace(drafter="/home/drafters/eagle-small")
    return SimpleNamespace(supervisor=SimpleNamespace(run_id="r", ready=ready, options=options))


def sample(*gpus: GpuSample, host: int = 0, gpu: int | None = None) -> DeviceSample:
    return DeviceSample(
        t=1.0,
        host_memory_total_bytes=64 * GIB,
        host_memory_available_bytes=40 * GIB,
        host_memory_used_bytes=24 * GIB,
        host_cpu_percent=None,
        app_process_bytes=GIB,
        engine_process_bytes={"r": host},
        engine_gpu_bytes={"r": gpu},
        disk_free_bytes=None,
        gpus=gpus,
        gpu_unavailable=None if gpus else "no driver",
    )


def card(used: int | None = 50 * GIB) -> GpuSample:
    return GpuSample(0, "card", 80 * GIB, used, None, None, None)


def by_name(parts: list[dict[str, Any]]) -> dict[str, float]:
    return {part["name"]: part["bytes"] / GIB for part in parts}


def test_memory_of_a_gpu_is_in_parts_that_add_up() -> None:
    found = _gpu(sample(card(), host=3 * GIB, gpu=32 * GIB), [engine("cuda:0")])
    parts = by_name(found["parts"])
    assert parts == {
        "weights": 8,
        "draft_weights": 1,
        "kv": 20,
        "workspace": 2,
        "runtime": 1,
        "other": 18,
        "free": 30,
    }
    assert sum(parts.values()) == 80
    host = by_name((_memory(sample(card(), host=3 * GIB, gpu=32 * GIB), [engine("cuda:0")]) or {})["parts"])
    assert (host["weights"], host["runtime"]) == (0, 3), "on the host it holds its process only"


def test_a_driver_that_hides_processes_leaves_what_the_engine_stated() -> None:
    found = by_name(_gpu(sample(card(), gpu=None), [engine("cuda:0")])["parts"])
    assert (found["weights"], found["kv"], found["runtime"], found["other"]) == (8, 20, 0, 19)
    assert sum(found.values()) == 80


def test_what_a_gpu_does_not_tell_is_not_zero() -> None:
    assert _gpu(sample(card(None)), [])["parts"] is None
    assert _gpu(sample(card(), card()), [])["parts"] is None, "one bar cannot show two cards"
    none = _gpu(sample(), [])
    assert (none["available"], none["reason"], none["parts"]) == (False, "no driver", None)


def test_a_drafter_is_named() -> None:
    assert _drafter(engine("cpu")) == {"proposer": "eagle", "name": "eagle-small"}


def test_an_entry_tells_quantisation_drafts_and_its_own_speculation(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path))) as client:
        assert client.load()["state"] == "succeeded"
        with client.live("header") as live:
            while (header := json.loads(live.recv(20))["data"])["engines"][0]["quantization"] is None:
                pass
        (entry,) = header["engines"]
        assert entry["model_id"] == MODEL
        assert (entry["quantization"], entry["dtype"], entry["device"]) == ("F32", "float32", "cpu")
        assert entry["drafter"] == {"proposer": "suffix", "name": ""}
        assert entry["speculation"]["proposer"] == "suffix"
        assert entry["idle_unload_at"] is None
        assert header["alerts"] == {"firing": 0, "unacknowledged": 0}
