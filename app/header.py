"""The live header: one look at what the server is doing, once a second and at every change of state.

Owns the summary that every page shows. Changes nothing. Invariant: each figure is observed or derived from observed
counters of one engine run; where there is none it is None.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.catalog import Catalog
from app.catalog.entry import CatalogError
from app.devices import DeviceSample
from app.engines import Engine, Engines
from app.generation import Generations
from app.jobs import JobRunner
from app.live import LiveHub
from app.recorder import Recorder
from app.selftests import SelfTests
from app.speculation import header_state
from engine.protocol import EngineStats

PERIOD_S = 1.0
SILENCE_S = 10.0  # an engine speaks four times a second, but not while one long step runs


class HeaderPublisher:
    """Publishes the topic `header`."""

    def __init__(
        self,
        hub: LiveHub,
        engines: Engines,
        generations: Generations,
        jobs: JobRunner,
        recorder: Recorder,
        catalog: Catalog,
        selftests: SelfTests,
        alert_counts: Callable[[], dict[str, int]],
    ) -> None:
        self._hub = hub
        self._engines = engines
        self._generations = generations
        self._jobs = jobs
        self._recorder = recorder
        self._catalog = catalog
        self._selftests = selftests
        self._alert_counts = alert_counts
        self._quantizations: dict[str, str | None] = {}  # of each engine run, as its checkpoint's header says
        self._previous: dict[str, EngineStats] = {}
        self._rates: dict[str, float | None] = {}

    async def run(self) -> None:
        """Publish until the task is cancelled."""
        while True:
            await self._update_quantizations()
            self._update_rates()
            self.publish()
            await asyncio.sleep(PERIOD_S)

    def publish(self) -> None:
        self._hub.publish("header", self._summary())

    def _summary(self) -> dict[str, Any]:
        engines = self._engines.all()
        sample = self._recorder.latest
        return {
            "state": _overall([_engine_state(engine) for engine in engines]),
            "engines": [self._engine(engine) for engine in engines],
            "memory": _memory(sample, engines),
            "gpu": _gpu(sample, engines),
            "alerts": self._alert_counts(),
            "jobs_running": self._jobs.num_running,
            "speculation": header_state(engines, self._selftests.failed),
            "default_model_id": self._catalog.default_id,
        }

    def _engine(self, engine: Engine) -> dict[str, Any]:
        supervisor = engine.supervisor
        stats, progress = supervisor.stats, supervisor.progress
        loading = supervisor.state == "loading"
        return {
            "id": supervisor.run_id,
            "model_id": supervisor.model_id,
            "state": supervisor.state,
            "stage": progress.stage if loading else None,
            "progress": progress.done / progress.total if loading and progress.total else None,
            "running": stats.num_requests_running if stats else 0,
            "waiting": stats.num_requests_waiting if stats else 0,
            "generation_tokens_per_s": self._rates.get(supervisor.run_id),
            "ttft_p95_s": self._generations.ttft_p95(supervisor.run_id),
            "kv_blocks_used": stats.kv_blocks_used if stats else None,
            "kv_blocks_total": stats.kv_blocks_total if stats else None,
            "silent_s": _silent_s(engine),
            "error": supervisor.error,
            "device": supervisor.ready.device if supervisor.ready is not None else None,
            "dtype": supervisor.ready.dtype if supervisor.ready is not None else None,
            "quantization": self._quantizations.get(supervisor.run_id),
            "drafter": _drafter(engine),
            "speculation": header_state([engine], self._selftests.failed),
            "idle_unload_at": engine.idle_unload_at,
            "selftest": self._selftests.state(engine)["state"],
            "selftest_failed": self._selftests.failed(engine),  # also while another one is running
        }

    async def _update_quantizations(self) -> None:
        """Look once at the checkpoint of each engine that is new."""
        models = {engine.supervisor.run_id: engine.model_id for engine in self._engines.all()}
        known = {run_id: found for run_id, found in self._quantizations.items() if run_id in models}
        for run_id in models.keys() - known.keys():
            try:
                info = (await asyncio.to_thread(self._catalog.resolve, models[run_id])).info
                known[run_id] = info.quantization if info is not None else None
            except CatalogError:  # its files are gone; the engine has what it needs in memory
                known[run_id] = None
        self._quantizations = known

    def _update_rates(self) -> None:
        present = {}
        rates: dict[str, float | None] = {}
        for engine in self._engines.all():
            stats, run_id = engine.supervisor.stats, engine.supervisor.run_id
            if stats is None or not engine.supervisor.alive:
                continue
            present[run_id] = stats
            before = self._previous.get(run_id)
            if before is not None and stats.t_s > before.t_s:
                rates[run_id] = (stats.generation_tokens_total - before.generation_tokens_total) / (
                    stats.t_s - before.t_s
                )
        self._previous, self._rates = present, rates


def _drafter(engine: Engine) -> dict[str, str] | None:
    """Who drafts for requests that do not say, with the drafter's name where it is a model; None: nobody."""
    ready = engine.supervisor.ready
    if ready is None or not ready.proposers:
        return None
    path = engine.supervisor.options.drafter
    return {"proposer": ready.speculation, "name": Path(path).stem if path else ""}


def _silent_s(engine: Engine) -> float | None:
    """How long a ready engine has said nothing, where that is longer than it ever should be; it may hang."""
    supervisor = engine.supervisor
    if supervisor.state != "ready" or supervisor.stats is None:
        return None
    silent_s = time.time() - supervisor.stats.t_s
    return silent_s if silent_s > SILENCE_S else None


def _engine_state(engine: Engine) -> str:
    supervisor = engine.supervisor
    stats = supervisor.stats
    if supervisor.state == "ready" and stats is not None and stats.num_requests_running + stats.num_requests_waiting:
        return "busy"
    return supervisor.state


def _overall(states: list[str]) -> str:
    """One word for all engines: what changes now, else what works, else what failed."""
    for word, among in (
        ("loading", ("loading",)),
        ("unloading", ("draining", "unloading")),
        ("busy", ("busy",)),
        ("ready", ("ready",)),
        ("failed", ("failed",)),
    ):
        if any(state in among for state in states):
            return word
    return "no_model"


def _engine_parts(engines: list[Engine], held: Mapping[str, int | None], *, gpu: bool) -> dict[str, int]:
    """What engines hold on the host or on GPUs, by part. A part counts as far as the process is seen to hold it; of a
    GPU whose driver hides that, as a container does, as the engine stated it."""
    parts = dict.fromkeys(("weights", "draft_weights", "kv", "workspace", "runtime"), 0)
    for engine in engines:
        seen, ready = held.get(engine.supervisor.run_id), engine.supervisor.ready
        left = seen or 0
        if ready is not None and (ready.device != "cpu") is gpu:
            stated = {
                "weights": ready.memory.weights_bytes,
                "draft_weights": ready.memory.draft_weights_bytes,
                "kv": ready.memory.kv_bytes,
                "workspace": ready.memory.workspace_bytes,
            }
            if seen is None and gpu:
                left = sum(stated.values())
            for name, size in stated.items():
                part = min(size, left)
                parts[name] += part
                left -= part
        parts["runtime"] += left
    return parts


def _memory(sample: DeviceSample | None, engines: list[Engine]) -> dict[str, Any] | None:
    """Host memory in parts that add up to the whole."""
    if sample is None:
        return None
    parts = _engine_parts(engines, sample.engine_process_bytes, gpu=False)
    app = sample.app_process_bytes or 0
    other = max(0, sample.host_memory_used_bytes - sum(parts.values()) - app)
    return {
        "total_bytes": sample.host_memory_total_bytes,
        "available_bytes": sample.host_memory_available_bytes,
        "parts": [
            *({"name": name, "bytes": size} for name, size in parts.items()),
            {"name": "app", "bytes": app},
            {"name": "other", "bytes": other},
            {"name": "free", "bytes": sample.host_memory_available_bytes},
        ],
    }


def _gpu(sample: DeviceSample | None, engines: list[Engine]) -> dict[str, Any]:
    """The first GPU; its memory in parts only where it is the only one."""
    if sample is None or not sample.gpus:
        reason = sample.gpu_unavailable if sample is not None else "not read yet"
        figures = {"name": None, "memory_used_bytes": None, "memory_total_bytes": None, "parts": None}
        return {"available": False, "reason": reason, **figures}
    gpu = sample.gpus[0]
    return {
        "available": True,
        "reason": None,
        "name": gpu.name,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "parts": _gpu_parts(sample, engines),
    }


def _gpu_parts(sample: DeviceSample, engines: list[Engine]) -> list[dict[str, Any]] | None:
    used, total = sample.gpus[0].memory_used_bytes, sample.gpus[0].memory_total_bytes
    if used is None or total is None or len(sample.gpus) > 1:
        return None
    parts = _engine_parts(engines, sample.engine_gpu_bytes, gpu=True)
    rest = max(0, used - sum(parts.values()))
    named = [{"name": name, "bytes": size} for name, size in parts.items()]
    return [*named, {"name": "other", "bytes": rest}, {"name": "free", "bytes": total - used}]
