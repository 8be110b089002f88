"""What is told of an engine that has gone: what it gave back of what it held, in what time, and whose wish it was.

Owns the event `unload` with its data, and what is told while an engine goes. Ends none itself. Invariant: every engine
that was ready and has ended is told of once, with its cause; what could not be measured is None.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from app.devices import DeviceSample
from app.events import EventLog
from app.jobs import JobHandle
from app.supervisor import EngineSupervisor, UnloadReceipt
from engine.config import GIB

Cause = Literal["operator", "idle", "evicted", "crash", "shutdown"]

KIND = "unload"
GPU_PATIENCE_S = 5.0
GPU_LOOK_S = 0.25
COUNT_DOWN_S = 0.25
WORDS: dict[Cause, str] = {
    "operator": "unloaded {}",
    "idle": "unloaded {}, which nobody had asked for anything",
    "evicted": "unloaded {} to make room",
    "crash": "{} has crashed",
    "shutdown": "unloaded {}: the server ends",
}


Samples = Callable[[], DeviceSample | None]


def on_gpu(sample: DeviceSample | None, run_id: str) -> tuple[int | None, int | None]:
    """What the driver says that an engine holds (None where it hides pids), and what all hold of the GPUs together."""
    if sample is None or not sample.gpus or any(gpu.memory_used_bytes is None for gpu in sample.gpus):
        return None, None
    return sample.engine_gpu_bytes.get(run_id), sum(gpu.memory_used_bytes or 0 for gpu in sample.gpus)


async def count_down(supervisor: EngineSupervisor, wait_s: float, handle: JobHandle) -> None:
    """Tell how an unload stands until it has ended: what it waits for, and how long yet."""
    began = time.monotonic()
    while True:
        running = supervisor.client.running_ids
        if running and wait_s and supervisor.state in ("ready", "draining"):
            waited = min(wait_s, time.monotonic() - began)
            handle.stage("drain", int(waited), int(wait_s), "seconds", ", ".join(running[:20]))
        else:
            handle.stage("stop")
        await asyncio.sleep(COUNT_DOWN_S)


async def with_gpu(
    receipt: UnloadReceipt,
    run_id: str,
    before: DeviceSample | None,
    latest: Samples,
    patience_s: float = GPU_PATIENCE_S,
) -> UnloadReceipt:
    """The receipt of an engine on a GPU: the driver's figures in the place of the host's.

    Freed is by how much less is in use than before, at most what the engine held; where its pids are hidden, that is
    all there is to know, and it counts as held. Waits until the memory was seen to return, or a sample later than
    `patience_s` still does not show it.
    """
    held, used_before = on_gpu(before, run_id)
    if before is None or used_before is None:
        return receipt
    waited, freed = 0.0, 0
    while waited <= patience_s:
        sample = latest()
        _, used = on_gpu(sample, run_id)
        if sample is not None and used is not None and sample.t > before.t:
            freed = max(0, used_before - used)
            if held is not None and freed >= held:
                break
        await asyncio.sleep(GPU_LOOK_S)
        waited += GPU_LOOK_S
    return replace(receipt, freed_bytes=freed if held is None else min(freed, held), expected_bytes=held or freed)


def tell_unload(events: EventLog, supervisor: EngineSupervisor, receipt: UnloadReceipt, cause: Cause) -> dict[str, Any]:
    """An engine was ended as it was meant to be. Returns the event's data."""
    data = {
        "cause": cause,
        "freed_bytes": receipt.freed_bytes,
        "held_bytes": receipt.expected_bytes,
        "seconds": receipt.seconds,
        "forced": receipt.forced,
        "lost_requests": supervisor.lost_requests,
        "model_id": supervisor.model_id,
    }
    message = f"{WORDS[cause].format(supervisor.model_id)}: {receipt.message}"
    events.add(KIND, "info", message, engine_run_id=supervisor.run_id, data=data)
    return data


def tell_crash(events: EventLog, supervisor: EngineSupervisor, sample: DeviceSample | None) -> None:
    """An engine has ended by itself. What it held is what was last sampled of it: its process is seen to be gone."""
    on_host = supervisor.ready is None or supervisor.ready.device == "cpu"
    readings: dict[str, int | None] = {}
    if sample is not None:
        readings = sample.engine_process_bytes if on_host else sample.engine_gpu_bytes
    held = readings.get(supervisor.run_id)
    data = {
        "cause": "crash",
        "freed_bytes": held,
        "held_bytes": held,
        "seconds": None,  # nobody saw it go
        "forced": False,
        "lost_requests": supervisor.lost_requests,
        "model_id": supervisor.model_id,
    }
    freed = "" if held is None else f": its {held / GIB:.2f} GiB are free again"
    message = f"{WORDS['crash'].format(supervisor.model_id)}{freed}"
    events.add(KIND, "error", message, engine_run_id=supervisor.run_id, data=data)
