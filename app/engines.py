"""All loaded models: which are there, loading and unloading them, and who serves which model id.

Owns the table of engines, the lock that serialises loads, and the division of CPU threads. Knows nothing of HTTP or of
how one process is run (supervisor). Invariant: at most one engine per model id; a failed one stays listed, with its
error and last log lines, until the model is loaded again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from app.catalog import Catalog
from app.catalog.entry import CatalogError
from app.catalog.local import LocalModel
from app.devices import DeviceSample, free_memory
from app.drafters import DrafterError, Drafters
from app.errors import ApiError
from app.events import EventLog
from app.fit import FitEstimate
from app.jobs import JobError, JobHandle, JobResult
from app.load_history import LoadHistory
from app.loaded_engine import Engine as Engine
from app.loaded_engine import run_row, struct_fields
from app.logs import prune_engine_logs
from app.memory_holders import memory_holders
from app.receipts import Cause, count_down, tell_crash, tell_unload, with_gpu
from app.recorder import EngineSnapshot
from app.sampling_defaults import sampling_defaults
from app.settings import Settings
from app.speculation import ProposerWatch
from app.supervisor import EngineStartError, EngineSupervisor
from app.template_check import chat_support
from app.traces import TraceLog
from app.what_if import Holder, Memory, WayOut, WhatIf, failed_load, ways_out, what_if
from app.writes import unwatched
from db.store import Store
from engine.checkpoint import CheckpointError
from engine.config import ConfigError, LoadOptions, check_kernel_backend, check_kv_cache_dtype
from engine.cores import usable_cores
from engine.protocol import BlockMap, EngineReady, EngineStats, RoomAnswer, StepTrace
from engine.vocab import Vocab, VocabError, load_vocab

log = logging.getLogger(__name__)


class Engines:
    """The table of engines."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        store: Store,
        events: EventLog,
        latest_sample: Callable[[], DeviceSample | None],
        on_change: Callable[[], None],
        traces: TraceLog,
        drafters: Drafters,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._store = store
        self._events = events
        self._latest_sample = latest_sample
        self._on_change = on_change
        self._traces = traces
        self._drafters = drafters
        self.on_blocks: Callable[[str, BlockMap | RoomAnswer], None] = lambda run_id, message: None
        self._proposers = ProposerWatch(events)
        self._history = LoadHistory(store)
        self._load_lock = asyncio.Lock()
        self._engines: dict[str, Engine] = {}

    # ---- looking ----------------------------------------------------------------------------------------------------

    def all(self) -> list[Engine]:
        """Oldest first, failed ones included."""
        return list(self._engines.values())

    def of_run(self, run_id: str) -> Engine:
        """The engine with this id. Raises ApiError."""
        for engine in self._engines.values():
            if engine.supervisor.run_id == run_id:
                return engine
        raise ApiError(404, f"there is no engine {run_id!r}", param="id", remedy="/api/engines lists them")

    def of_model(self, model_id: str) -> Engine | None:
        return self._engines.get(model_id)

    def loaded_ids(self) -> list[str]:
        """Models that take requests now, the default (the first loaded) first."""
        return [model_id for model_id, engine in self._engines.items() if engine.supervisor.state == "ready"]

    def serving(self, model_id: str | None) -> Engine:
        """The engine that serves the model (None: the default). Raises ApiError with what is loaded."""
        loaded = self.loaded_ids()
        if model_id is None and loaded:
            return self._engines[loaded[0]]
        if model_id in loaded:
            return self._engines[model_id]
        engine = self._engines.get(model_id or "")
        if engine is not None and engine.supervisor.state == "failed":
            raise ApiError(
                503, str(engine.supervisor.error), remedy="Load the model again", param="model", code="engine_failed"
            )
        if not loaded:
            others = "".join(f"; {each.model_id} is {each.supervisor.state}" for each in self.all())
            raise ApiError(
                503,
                f"no model is loaded{others}",
                remedy="Load one on the Models page and try again",
                code="no_model_loaded",
            )
        raise ApiError(
            404,
            f"the model {model_id!r} is not loaded; loaded: {', '.join(loaded)}",
            param="model",
            remedy="Use one of these or load it on the Models page",
            code="model_not_found",
        )

    def changed(self) -> None:
        """Something of an engine was changed from outside: tell it."""
        self._on_change()

    def snapshots(self) -> list[EngineSnapshot]:
        """What the recorder samples: every engine whose process is alive."""
        return [
            EngineSnapshot(
                engine_run_id=supervisor.run_id,
                model_id=supervisor.model_id,
                pid=supervisor.pid,
                stats=supervisor.stats,
                memory=supervisor.ready.memory if supervisor.ready is not None else None,
                device=supervisor.ready.device if supervisor.ready is not None else None,
            )
            for supervisor in (engine.supervisor for engine in self._engines.values())
            if supervisor.alive and supervisor.pid is not None
        ]

    def free_memory(self, device: str) -> tuple[str, int, int]:
        """The device that "auto" means here, and its available and total bytes."""
        return free_memory(self._latest_sample(), device)

    def latest_sample(self) -> DeviceSample | None:
        """The newest reading of the machine."""
        return self._latest_sample()

    def holders(self, device: str) -> list[Holder]:
        """The loaded models, and what each would give back on that device."""
        names = {engine.model_id: engine.supervisor.run_id for engine in self.all()}
        shares = memory_holders(device, 0, self._latest_sample(), self.snapshots())
        return [Holder(each.name, names[each.name], each.bytes) for each in shares if each.kind == "engine"]

    # ---- loading and unloading --------------------------------------------------------------------------------------

    async def local(self, model_id: str, *, allow_broken: bool = False) -> LocalModel:
        """The model on disk. Raises ApiError for an unknown one, and for a broken one with what is wrong with it."""
        try:
            model = await asyncio.to_thread(self._catalog.resolve, model_id)
        except CatalogError as error:
            raise ApiError(404, str(error), param="id", code="model_not_found") from error
        if model.info is None and not allow_broken:
            raise ApiError(409, model.error or f"{model_id} cannot be read", param="id", code="broken_model")
        return model

    async def estimate(self, model_id: str, options: LoadOptions, unload_first: Sequence[str] = ()) -> WhatIf:
        """What a load would take, from the checkpoint's header and the memory that is free now (or will be, without
        these models), and what else would fit. Raises ApiError."""
        model = await self.local(model_id)
        options = await self.with_drafter(options, model)
        memory = Memory(*self.free_memory(options.device))
        for name, check in (("kv_cache_dtype", check_kv_cache_dtype), ("kernel_backend", check_kernel_backend)):
            try:
                check(options, memory.device)
            except ConfigError as error:
                raise ApiError(400, str(error), param=f"options.{name}") from error
        assert model.info is not None
        used = memory.total_bytes - memory.available_bytes
        held = memory_holders(memory.device, used, self._latest_sample(), self.snapshots())
        holders = self.holders(memory.device)
        memory = memory.without(each for each in holders if each.model_id in unload_first)
        others = [each for each in holders if each.model_id not in (model_id, *unload_first)]
        try:
            return await asyncio.to_thread(
                what_if, model.info, options, memory, held, others, lambda size: self._history.learned(model, size)
            )
        except (ConfigError, CheckpointError) as error:  # of the drafter: the model's own header was read before
            raise ApiError(400, str(error), param="options.drafter", code="unfit_drafter") from error

    async def load(
        self, model_id: str, options: LoadOptions, handle: JobHandle, unload_first: Sequence[str] = ()
    ) -> JobResult:
        """The work of a load job. Loads go one after the other, in the order they were asked for.

        unload_first: models that make room before; the model itself among them is loaded anew.
        """
        if self._load_lock.locked():
            handle.stage("queued", message="waiting for another load to finish")
        async with self._load_lock:
            for other in unload_first:
                engine = self._engines.get(other)
                if engine is not None and engine.supervisor.alive:
                    cause: Cause = "operator" if other == model_id else "evicted"
                    await self.unload(other, force=False, handle=handle, cause=cause)
            handle.stage("check")
            model = await self.local(model_id)
            try:
                vocab = await asyncio.to_thread(load_vocab, model.path)
            except VocabError as error:
                raise JobError(str(error), {"kind": "bad_checkpoint"}) from error
            chat = await asyncio.to_thread(chat_support, vocab)
            for setting in chat.settings:
                handle.log(f"{setting.name}: {setting.reason}")
            old = self._engines.get(model_id)
            if old is not None and old.supervisor.alive:
                raise JobError(f"{model_id} is already loaded")
            wishes, options = options, await self.with_drafter(options, model)
            found = await self.estimate(model_id, options)
            handle.log(found.fit.message)
            handle.expect(None if found.learned is None else found.learned.load_s)
            if not found.fit.fits:
                raise JobError(found.fit.message, self._failed_load("does_not_fit", found.ways_out))
            supervisor = self._supervisor(model, self._with_threads(options), handle, vocab)
            self._engines.pop(model_id, None)
            defaults = sampling_defaults(model.path, self._catalog.entry(model_id))
            engine = Engine(supervisor, vocab, chat.encoder, chat.error, defaults, chat.settings, wishes)
            self._engines[model_id] = engine
            ready = await self._start(supervisor, model, options, found.fit)
            await asyncio.to_thread(self._history.loaded, supervisor, model, found.fit.total_bytes)
        return {"engine_id": supervisor.run_id, "load_s": ready.load_s, "memory": struct_fields(ready.memory)}

    async def unload(
        self,
        model_id: str,
        *,
        force: bool,
        handle: JobHandle,
        cause: Cause = "operator",
        drain_s: float | None = None,
    ) -> JobResult:
        """The work of an unload job. drain_s: how long running requests may take; None: as the settings say."""
        engine = self._engines.get(model_id)
        if engine is None or not engine.supervisor.alive:
            raise JobError(f"{model_id} is not loaded")
        supervisor = engine.supervisor
        wait_s = 0.0 if force else self._settings.drain_timeout_s if drain_s is None else drain_s
        before = self._latest_sample()
        countdown = asyncio.create_task(count_down(supervisor, wait_s, handle))
        try:
            receipt = await supervisor.unload(drain_s=wait_s, kill_s=self._settings.kill_timeout_s)
        finally:
            countdown.cancel()
        self._forget(engine)
        if supervisor.ready is not None and supervisor.ready.device != "cpu":
            receipt = await with_gpu(receipt, supervisor.run_id, before, self._latest_sample)
        self._history.held(supervisor.run_id, receipt.expected_bytes)
        tell_unload(self._events, supervisor, receipt, cause)
        return {
            **dataclasses.asdict(receipt),
            "message": receipt.message,
            "cause": cause,
            "lost_requests": supervisor.lost_requests,
        }

    async def shutdown(self) -> None:
        """End every engine at once; running requests are aborted."""

        async def end(supervisor: EngineSupervisor) -> None:
            receipt = await supervisor.unload(drain_s=0.0, kill_s=self._settings.kill_timeout_s)
            tell_unload(self._events, supervisor, receipt, "shutdown")

        alive = [engine.supervisor for engine in self._engines.values() if engine.supervisor.alive]
        await asyncio.gather(*(end(supervisor) for supervisor in alive))

    async def with_drafter(self, options: LoadOptions, model: LocalModel) -> LoadOptions:
        """The options with a path in the place of a drafter's name. Raises ApiError."""
        try:
            return await asyncio.to_thread(self._drafters.resolved, options, model)
        except DrafterError as error:
            raise ApiError(400, str(error), param="options.drafter", code="unknown_drafter") from error

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _with_threads(self, options: LoadOptions) -> LoadOptions:
        """Divide the cores among the engines there will be, unless the operator chose a number."""
        if options.num_threads is not None:
            return options
        others = sum(engine.supervisor.alive for engine in self._engines.values())
        return dataclasses.replace(options, num_threads=max(1, usable_cores() // (others + 1)))

    def _supervisor(self, model: LocalModel, options: LoadOptions, handle: JobHandle, vocab: Vocab) -> EngineSupervisor:
        run_id = uuid.uuid4().hex[:12]
        prune_engine_logs(self._settings.home)

        def changed(supervisor: EngineSupervisor) -> None:
            self._record(supervisor)
            if supervisor.state == "loading":
                progress = supervisor.progress
                unit = "bytes" if progress.stage in ("weights", "kv_cache") else "steps"
                handle.stage(progress.stage, progress.done, progress.total, unit, progress.message)
            self._on_change()

        def reported(report: EngineStats | StepTrace | BlockMap | RoomAnswer) -> None:
            if isinstance(report, StepTrace):
                self._traces.take(report, run_id, vocab)
            elif isinstance(report, BlockMap | RoomAnswer):
                self.on_blocks(run_id, report)
            else:
                self._proposers.observe(model.id, run_id, report)

        return EngineSupervisor(
            run_id,
            model.id,
            model.path,
            options,
            argv=self._settings.engine_argv,
            log_path=self._settings.home / "logs" / f"engine-{run_id}.log",
            kernel_cache=self._settings.home / "kernels",
            on_change=changed,
            on_report=reported,
        )

    async def _start(
        self, supervisor: EngineSupervisor, model: LocalModel, options: LoadOptions, fit: FitEstimate
    ) -> EngineReady:
        unwatched(self._store.save_engine_run(run_row(supervisor)))
        try:
            ready = await supervisor.start()
        except EngineStartError as error:
            ways: list[WayOut] = []
            if error.kind in ("does_not_fit", "out_of_memory") and model.info is not None:
                memory = Memory(*self.free_memory(options.device))
                ways = await asyncio.to_thread(ways_out, model.info, options, memory, fit, self.holders(memory.device))
            raise JobError(str(error), self._failed_load(error.kind, ways, supervisor.log_tail())) from error
        except asyncio.CancelledError:
            self._engines.pop(supervisor.model_id, None)
            self._on_change()
            raise
        self._events.add(
            "load",
            "info",
            f"loaded {supervisor.model_id} in {time.time() - supervisor.started_at:.1f} s",
            engine_run_id=supervisor.run_id,
        )
        return ready

    def _failed_load(self, kind: str, ways: Sequence[WayOut], log_tail: Sequence[str] = ()) -> JobResult:
        return failed_load(kind, ways, Memory(*self.free_memory("auto")), log_tail)

    def _record(self, supervisor: EngineSupervisor) -> None:
        """Write a change of state down; progress of a load is the job's to tell."""
        if supervisor.state == "loading":
            return
        if supervisor.state in ("failed", "stopped"):
            unwatched(self._store.end_engine_run(supervisor.run_id, supervisor.state, supervisor.error))
            self._proposers.forget(supervisor.run_id)
        else:
            engine = self._engines.get(supervisor.model_id)
            chat_settings = () if engine is None else engine.chat_settings
            unwatched(self._store.save_engine_run(run_row(supervisor, chat_settings)))
        if supervisor.state == "failed":
            if supervisor.ready is not None:
                tell_crash(self._events, supervisor, self._latest_sample())
            data = {"log_tail": supervisor.log_tail(20), "lost_requests": supervisor.lost_requests}
            self._events.add(
                "engine_failed", "error", str(supervisor.error), engine_run_id=supervisor.run_id, data=data
            )

    def _forget(self, engine: Engine) -> None:
        if self._engines.get(engine.model_id) is engine and engine.supervisor.state == "stopped":
            del self._engines[engine.model_id]
            self._on_change()
