"""Once a second: what the engines counted and what the machine shows, into the database and onto the live feed.

Owns the schedule and the join. Knows nothing of how figures are read, stored or merged.
Invariants: the event loop never waits for a device or the disk; a tick that fails is noted as an event and the next one
comes; a figure that is not known stays None.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from app.devices import DeviceSample
from app.live_columns import LiveColumns
from db.figures import ACCEPTED_POSITIONS, DRAFTED_POSITIONS, ENGINE, MEMORY_PARTS
from db.histogram import LatencyHistogram
from db.rows import DeviceSampleRow, EngineSampleRow
from db.store import Store
from engine.protocol import EngineMemory, EngineStats

log = logging.getLogger(__name__)

T = TypeVar("T")

SAMPLE_PERIOD_S = 1.0
MAINTENANCE_PERIOD_S = 60.0
STALE_STATS_S = 30.0  # one long step may keep an engine silent; silent for longer, its last figures are not the truth
REPEAT_ERROR_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What the app knows of a living engine process. `stats`, `memory` and `device` are None until it is ready."""

    engine_run_id: str
    model_id: str
    pid: int
    stats: EngineStats | None
    memory: EngineMemory | None
    device: str | None = None


class Sampler(Protocol):
    """Reads the machine; blocks while it does."""

    def sample(self, pids: dict[str, int]) -> DeviceSample:
        """One reading; `pids` by engine run id."""
        ...


class Recorder:
    """Records until its task is cancelled. All methods belong to the event loop."""

    def __init__(
        self,
        store: Store,
        device_sampler: Sampler,
        engines: Callable[[], list[EngineSnapshot]],
        publish: Callable[[str, dict[str, Any]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.latest: DeviceSample | None = None  # the newest reading of the machine
        self._store = store
        self._sampler = device_sampler
        self._engines = engines
        self._publish = publish
        self._clock = clock
        self._live = LiveColumns()
        self._ttft: dict[str, LatencyHistogram] = defaultdict(LatencyHistogram)
        self._itl: dict[str, LatencyHistogram] = defaultdict(LatencyHistogram)
        self._errors: dict[str, float] = {}

    def observe_ttft(self, engine_run_id: str, seconds: float) -> None:
        """Count one request's time to its first token."""
        self._ttft[engine_run_id].add(seconds)

    def observe_itl(self, engine_run_id: str, seconds: float) -> None:
        """Count one time between two tokens of a request."""
        self._itl[engine_run_id].add(seconds)

    async def run(self) -> None:
        """Sample and tidy up, each at its own pace, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(SAMPLE_PERIOD_S, self.tick))
            tasks.create_task(self._repeat(MAINTENANCE_PERIOD_S, self.maintain))

    async def tick(self) -> None:
        """One second's sample."""
        snapshots = self._engines()
        pids = {each.engine_run_id: each.pid for each in snapshots}
        sample = self.latest = await asyncio.to_thread(self._sampler.sample, pids)
        device = device_row(sample)
        ttft, itl = self._take_latencies()
        engines = [
            engine_row(each, sample, ttft.get(each.engine_run_id), itl.get(each.engine_run_id)) for each in snapshots
        ]
        for message in self._live.messages(device, engines):
            self._publish("samples", message)
        await asyncio.wrap_future(self._store.add_samples(device, engines))

    async def maintain(self) -> None:
        """Roll up and prune."""
        await asyncio.wrap_future(self._store.maintain())

    def _take_latencies(self) -> tuple[dict[str, LatencyHistogram], dict[str, LatencyHistogram]]:
        taken = dict(self._ttft), dict(self._itl)
        self._ttft.clear()
        self._itl.clear()
        return taken

    async def _repeat(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        last_due = 0.0
        while True:
            due = next_due(self._clock(), last_due, period_s)
            await asyncio.sleep(max(0.0, due - self._clock()))
            last_due = due
            try:
                await work()
            except Exception as error:
                await self._note(error)

    async def _note(self, error: Exception) -> None:
        """Tell the operator, but not every second."""
        text = f"{type(error).__name__}: {error}"
        now = time.monotonic()
        if now - self._errors.get(text, -math.inf) < REPEAT_ERROR_S:
            return
        self._errors = {known: t for known, t in self._errors.items() if now - t < REPEAT_ERROR_S} | {text: now}
        log.error("recording failed: %s", text, exc_info=error)
        try:
            event = await asyncio.wrap_future(self._store.add_event("recorder", "error", f"recording failed: {text}"))
        except Exception as second_error:
            log.error("the event could not be stored either: %s", second_error)
            return
        self._publish("events", dataclasses.asdict(event))


def next_due(now: float, last_due: float, period_s: float) -> float:
    """The next middle of a period after `now`.

    A late tick then still falls into its own period, nothing drifts, and periods that were missed are skipped. A timer
    that fires a hair early does not repeat the tick it has just done.
    """
    due = (math.floor(now / period_s + 0.5) + 0.5) * period_s
    return due + period_s if due == last_due else due


def engine_row(
    engine: EngineSnapshot, sample: DeviceSample, ttft: LatencyHistogram | None, itl: LatencyHistogram | None
) -> EngineSampleRow:
    """One engine's figures of this second."""
    run_id, stats = engine.engine_run_id, engine.stats
    row = EngineSampleRow(
        engine_run_id=run_id,
        t=sample.t,
        engine_process_bytes=sample.engine_process_bytes[run_id],
        engine_gpu_bytes=sample.engine_gpu_bytes[run_id],
        ttft_histogram=ttft,
        itl_histogram=itl,
    )
    if stats is not None and sample.t - stats.t_s > STALE_STATS_S:
        stats = None
    row = dataclasses.replace(row, **_memory_parts(engine.memory, stats))
    if stats is None:
        return row
    counted = {name: getattr(stats, name) for name in _COUNTED}
    return dataclasses.replace(
        row,
        counted_at=stats.t_s,
        accepted_per_position=stats.accepted_per_position_total,
        drafted_per_position=stats.drafted_per_position_total,
        **counted,
    )


_ELSEWHERE = {
    *("engine_process_bytes", "engine_gpu_bytes", "kv_used_bytes", "kv_cached_bytes"),
    *(*MEMORY_PARTS, *ACCEPTED_POSITIONS, *DRAFTED_POSITIONS),
}
_COUNTED = tuple(name for name in (*ENGINE.gauges, *ENGINE.counters) if name not in _ELSEWHERE)


def _memory_parts(memory: EngineMemory | None, stats: EngineStats | None) -> dict[str, Any]:
    """What the engine stated that it holds, and what of its KV pool is in use."""
    if memory is None:
        return {}
    parts: dict[str, Any] = {name: getattr(memory, name) for name in MEMORY_PARTS}
    if stats is not None and stats.kv_blocks_total:
        block_bytes = memory.kv_bytes / stats.kv_blocks_total
        parts["kv_used_bytes"] = block_bytes * stats.kv_blocks_used
        parts["kv_cached_bytes"] = block_bytes * stats.kv_blocks_cached
    return parts


def device_row(sample: DeviceSample) -> DeviceSampleRow:
    """The machine's figures of this second, several GPUs as one."""
    utilization = _known(gpu.utilization_percent for gpu in sample.gpus)
    power = _known(gpu.power_w for gpu in sample.gpus)
    return DeviceSampleRow(
        t=sample.t,
        host_memory_total_bytes=sample.host_memory_total_bytes,
        host_memory_used_bytes=sample.host_memory_used_bytes,
        host_memory_available_bytes=sample.host_memory_available_bytes,
        host_cpu_percent=sample.host_cpu_percent,
        app_process_bytes=sample.app_process_bytes,
        disk_free_bytes=sample.disk_free_bytes,
        gpu_memory_total_bytes=_total(_known(gpu.memory_total_bytes for gpu in sample.gpus)),
        gpu_memory_used_bytes=_total(_known(gpu.memory_used_bytes for gpu in sample.gpus)),
        gpu_utilization_percent=sum(utilization) / len(utilization) if utilization else None,
        gpu_temperature_c=max(_known(gpu.temperature_c for gpu in sample.gpus), default=None),
        gpu_power_w=sum(power) if power else None,
    )


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _total(values: Sequence[int]) -> int | None:
    return sum(values) if values else None
