"""The figures that alert rules look at, as they are now.

Owns the way from engines, devices and records to metrics. Judges nothing. Invariant: a figure is read where the rest of
the dashboard reads it too; what cannot be known is None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from app.alert_baseline import Latencies
from app.alert_metrics import METRICS, MIN_DRAFTED, WINDOW_S, Values
from app.devices import DeviceSample
from app.loaded_engine import Engine
from engine.protocol import EngineStats

GIB = 2**30
HOST = "host"


class Ttfts(Protocol):
    """Who knows the times to first token."""

    def ttft_p95(self, engine_run_id: str) -> float | None:
        """Of an engine's requests that ended in the last minutes."""
        ...


class AlertFacts:
    """Reads the figures of this second. Used from the event loop."""

    def __init__(
        self,
        engines: Callable[[], list[Engine]],
        latest_sample: Callable[[], DeviceSample | None],
        ttfts: Ttfts,
    ) -> None:
        self._engines = engines
        self._latest_sample = latest_sample
        self._ttfts = ttfts
        self._seen: dict[str, deque[EngineStats]] = {}  # engine run -> its counters of the last minutes

    def read(self, now: float, latencies: Latencies) -> Values:
        """Every metric with a value, or None, for each subject there is."""
        values: Values = {name: {} for name in METRICS}
        engines = self._engines()
        self._remember(now, engines)
        for engine in engines:
            for name, value in self._of_engine(now, engine, latencies).items():
                values[name][engine.model_id] = value
        sample = self._latest_sample()
        if sample is not None:
            for name, subjects in _of_machine(sample).items():
                values[name] = subjects
        return values

    def _remember(self, now: float, engines: Iterable[Engine]) -> None:
        alive = {engine.supervisor.run_id: engine for engine in engines if engine.supervisor.alive}
        self._seen = {run_id: self._seen.get(run_id, deque()) for run_id in alive}
        for run_id, seen in self._seen.items():
            stats = alive[run_id].supervisor.stats
            if stats is not None and (not seen or stats.t_s - seen[-1].t_s >= 0.9):
                seen.append(stats)
            while len(seen) > 2 and seen[1].t_s < now - WINDOW_S:
                seen.popleft()

    def _of_engine(self, now: float, engine: Engine, latencies: Latencies) -> dict[str, float | None]:
        supervisor = engine.supervisor
        if supervisor.ready is None:
            return {}  # it is loading, or its load failed: nothing that served is down
        if not supervisor.alive:
            return {"engine_down": float(supervisor.state == "failed")}
        seen, stats = self._seen[supervisor.run_id], supervisor.stats
        usual, latency = latencies.baseline.get(engine.model_id), latencies.now.get(engine.model_id)
        found: dict[str, float | None] = {
            "engine_down": 0.0,
            "ttft_p95_s": self._ttfts.ttft_p95(supervisor.run_id),
            "latency_p95_s": latency,
            "latency_p95_ratio": latency / usual if latency is not None and usual else None,
            "acceptance_percent": _acceptance(seen),
            "tokens_per_s": _tokens_per_s(seen),
        }
        if stats is not None:
            blocks = stats.kv_blocks_total
            found |= {
                "requests_waiting": stats.num_requests_waiting,
                "requests_running": stats.num_requests_running,
                "kv_used_percent": 100 * stats.kv_blocks_used / blocks if blocks else None,
                "engine_silent_s": max(0.0, now - stats.t_s) if supervisor.state == "ready" else None,
            }
        return found


def _acceptance(seen: deque[EngineStats]) -> float | None:
    if len(seen) < 2:
        return None
    drafted = seen[-1].drafted_total - seen[0].drafted_total
    accepted = seen[-1].accepted_total - seen[0].accepted_total
    return 100 * accepted / drafted if drafted >= MIN_DRAFTED else None


def _tokens_per_s(seen: deque[EngineStats]) -> float | None:
    if len(seen) < 2 or seen[-1].t_s <= seen[-2].t_s:
        return None
    return (seen[-1].generation_tokens_total - seen[-2].generation_tokens_total) / (seen[-1].t_s - seen[-2].t_s)


def _of_machine(sample: DeviceSample) -> Values:
    host = 100 * sample.host_memory_used_bytes / sample.host_memory_total_bytes
    device: dict[str, float | None] = {
        f"gpu {gpu.index}": 100 * gpu.memory_used_bytes / gpu.memory_total_bytes
        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes
        else None
        for gpu in sample.gpus
    }
    free = sample.disk_free_bytes
    return {
        "device_memory_percent": device or {HOST: host},
        "host_memory_percent": {HOST: host},
        "host_cpu_percent": {HOST: sample.host_cpu_percent},
        "gpu_temperature_c": {f"gpu {gpu.index}": gpu.temperature_c for gpu in sample.gpus},
        "disk_free_gib": {HOST: None if free is None else free / GIB},
    }
