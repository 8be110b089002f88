"""Who has the memory that is not free: the loaded models by name, this server, and all others together.

Owns the division of what is in use. Knows nothing of how it is read (devices) or what it is compared with (fit).
Invariant: the shares add up to what is in use, unless the engines hold more than that by an older reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.devices import DeviceSample
from app.recorder import EngineSnapshot
from engine.core.sizing import format_bytes

APP, OTHER = "this server", "other programs"


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A share of the memory in use. kind: "engine" | "app" | "other". measured: False where an engine's own word counts
    because its process cannot be read."""

    name: str
    kind: str
    bytes: int
    measured: bool = True


def memory_holders(
    device: str, used_bytes: int, sample: DeviceSample | None, engines: Sequence[EngineSnapshot]
) -> list[MemoryHolder]:
    """Who holds `used_bytes` of the device ("cpu": the host's memory, else the first GPU's), engines first."""
    holders = [holder for engine in engines if (holder := _engine_holder(device, sample, engine)) is not None]
    if device == "cpu" and sample is not None and sample.app_process_bytes is not None:
        holders.append(MemoryHolder(APP, "app", sample.app_process_bytes))
    rest = used_bytes - sum(holder.bytes for holder in holders)
    return [*holders, MemoryHolder(OTHER, "other", max(0, rest))]


def in_words(holders: Sequence[MemoryHolder]) -> str:
    """For a refusal: who has how much."""
    shares = [f"{holder.name} {format_bytes(holder.bytes)}" for holder in holders if holder.bytes]
    return f"In use already: {', '.join(shares)}" if shares else ""


def _engine_holder(device: str, sample: DeviceSample | None, engine: EngineSnapshot) -> MemoryHolder | None:
    """What an engine holds of the device; None where it holds nothing there, or is loading and cannot be read."""
    on_host = device == "cpu"
    if sample is not None:
        readings = sample.engine_process_bytes if on_host else sample.engine_gpu_bytes
        measured = readings.get(engine.engine_run_id)
        if measured is not None:
            return MemoryHolder(engine.model_id, "engine", measured)
    memory = engine.memory
    if memory is None or (not on_host and engine.device == "cpu"):
        return None
    tensors = memory.weights_bytes + memory.draft_weights_bytes + memory.kv_bytes + memory.workspace_bytes
    return MemoryHolder(engine.model_id, "engine", memory.process_bytes if on_host else tensors, measured=False)
