"""What is told of an engine that has gone: what it gave back of what it held, in what time, and whose wish it was.

Owns the event `unload` and its data. Measures nothing itself. Invariant: every engine that was ready and has ended is
told of once, with its cause; what could not be measured is None.
"""

from __future__ import annotations

from typing import Any, Literal

from app.devices import DeviceSample
from app.events import EventLog
from app.supervisor import EngineSupervisor, UnloadReceipt
from engine.config import GIB

Cause = Literal["operator", "idle", "evicted", "crash", "shutdown"]

KIND = "unload"
WORDS: dict[Cause, str] = {
    "operator": "unloaded {}",
    "idle": "unloaded {}, which nobody had asked for anything",
    "evicted": "unloaded {} to make room",
    "crash": "{} has crashed",
    "shutdown": "unloaded {}: the server ends",
}


def tell_unload(
    events: EventLog, supervisor: EngineSupervisor, receipt: UnloadReceipt, cause: Cause, ran: list[str]
) -> dict[str, Any]:
    """An engine was ended as it was meant to be. `ran`: the requests that were cut short. Returns the event's data."""
    data = {
        "cause": cause,
        "freed_bytes": receipt.freed_bytes,
        "held_bytes": receipt.expected_bytes,
        "seconds": receipt.seconds,
        "forced": receipt.forced,
        "lost_requests": ran,
        "model_id": supervisor.model_id,
    }
    message = f"{WORDS[cause].format(supervisor.model_id)}: {receipt.message}"
    events.add(KIND, "info", message, engine_run_id=supervisor.run_id, data=data)
    return data


def tell_crash(events: EventLog, supervisor: EngineSupervisor, sample: DeviceSample | None) -> None:
    """An engine has ended by itself. What it held is what was last sampled of it: its process is seen to be gone."""
    readings: dict[str, int | None] = {} if sample is None else sample.engine_process_bytes
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
