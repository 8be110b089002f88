"""The long jobs of a model: pull, load, unload, quantise, train a drafter.

Owns what each does step by step and when it is refused. Knows nothing of HTTP. Invariant: one job of a kind for a
model at a time; asking again returns the one that runs, and asking with force hurries an unload that drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.catalog import Catalog, UnknownModelError
from app.catalog.download import PullError
from app.catalog.entry import CatalogError
from app.engine_jobs import EngineJobError, EngineJobStopped, JobLine
from app.engines import Engines
from app.errors import ApiError
from app.events import EventLog
from app.jobs import JobError, JobHandle, JobResult, JobRunner
from app.quantize import JOB as QUANTIZE
from app.quantize import QuantizeError, Quantizer, QuantizeWish
from app.receipts import Cause
from app.train_drafter import JOB as TRAIN_DRAFTER
from app.train_drafter import DrafterTrainer, TrainError, TrainWish
from db.rows import JobRow
from engine.config import LoadOptions


@dataclass(frozen=True, slots=True)
class PullWish:
    """What to fetch: a catalogue id, a hub repository, or a path."""

    source: str
    revision: str | None = None
    token: str | None = None
    accept_license: bool = False


class ModelJobs:
    """Starts the jobs."""

    def __init__(
        self,
        jobs: JobRunner,
        catalog: Catalog,
        engines: Engines,
        events: EventLog,
        quantizer: Quantizer,
        trainer: DrafterTrainer,
    ) -> None:
        self._events = events
        self._quantizer = quantizer
        self._trainer = trainer
        self._training: dict[str, TrainWish] = {}  # the newest such job of a model
        self._quantizing: dict[str, QuantizeWish] = {}  # what the newest such job of a model makes
        self._jobs = jobs
        self._catalog = catalog
        self._engines = engines

    def pull(self, wish: PullWish) -> JobRow:
        async def work(handle: JobHandle) -> JobResult:
            try:
                model = await self._catalog.pull(
                    wish.source,
                    handle.stage,
                    revision=wish.revision,
                    token=wish.token,
                    accept_license=wish.accept_license,
                    cancelled=handle.cancelled,
                )
            except (CatalogError, PullError, OSError) as error:
                raise JobError(str(error)) from error
            if model.error is not None:
                raise JobError(f"fetched, but it cannot be loaded: {model.error}")
            return {"model_id": model.id, "path": str(model.path), "size_bytes": model.size_bytes}

        return self._jobs.running("pull", wish.source) or self._jobs.start("pull", wish.source, work)

    def load(self, model_id: str, options: LoadOptions, unload_first: Sequence[str] = ()) -> JobRow:
        """`unload_first`: loaded models that make room; the model itself among them is loaded anew."""
        running = self._jobs.running("load", model_id)
        if running is not None:
            return running
        engine = self._engines.of_model(model_id)
        if engine is not None and engine.supervisor.alive and model_id not in unload_first:
            if self._jobs.running("unload", model_id) is not None:
                raise ApiError(409, f"{model_id} is being unloaded", remedy="Wait for it to end, then load again")
            raise ApiError(409, f"{model_id} is already loaded", remedy="Unload it first to change its options")

        async def work(handle: JobHandle) -> JobResult:
            return await self._engines.load(model_id, options, handle, unload_first)

        return self._jobs.start("load", model_id, work)

    def unload(self, model_id: str, *, force: bool, cause: Cause = "operator", drain_s: float | None = None) -> JobRow:
        """`drain_s`: how long running requests may take to end; None: as the settings say."""
        running = self._jobs.running("unload", model_id)
        if running is not None:
            if force and (draining := self._engines.of_model(model_id)) is not None:
                draining.supervisor.stop_draining()
            return running
        loading = self._jobs.running("load", model_id)
        if loading is not None:
            raise ApiError(409, f"{model_id} is still loading", remedy=f"Cancel the job {loading.id} instead")
        engine = self._engines.of_model(model_id)
        if engine is None or not engine.supervisor.alive:
            raise ApiError(409, f"{model_id} is not loaded")

        async def work(handle: JobHandle) -> JobResult:
            return await self._engines.unload(model_id, force=force, handle=handle, cause=cause, drain_s=drain_s)

        return self._jobs.start("unload", model_id, work)

    async def quantize(self, wish: QuantizeWish) -> JobRow:
        """Make a quantised model of one on disk. Raises ApiError for a wish that cannot be granted."""
        try:
            plan = await asyncio.to_thread(self._quantizer.plan, wish)
        except QuantizeError as error:
            raise ApiError(409 if error.param in ("id", "output_id") else 400, str(error), param=error.param) from error
        except UnknownModelError as error:
            raise ApiError(404, str(error), param="id", code="model_not_found") from error
        except (CatalogError, PullError) as error:
            raise ApiError(409, str(error)) from error
        running = self._jobs.running(QUANTIZE, wish.model_id)
        if running is not None:
            if self._quantizing.get(wish.model_id) == wish:
                return running
            remedy = f"Wait for it, or cancel the job {running.id}"
            raise ApiError(409, f"{wish.model_id} is being quantised already", remedy=remedy)

        async def work(handle: JobHandle) -> JobResult:
            def report(line: JobLine) -> None:
                handle.stage(line.stage, line.done, line.total, "steps", line.message)

            try:
                result = await self._quantizer.run(plan, report, handle.log)
            except (EngineJobError, EngineJobStopped, OSError) as error:
                raise JobError(str(error)) from error
            self._events.add(QUANTIZE, "info", f"made {plan.output_id} of {plan.model.id}")
            return result

        self._quantizing[wish.model_id] = wish
        return self._jobs.start(QUANTIZE, wish.model_id, work)

    async def train_drafter(self, wish: TrainWish) -> JobRow:
        """Train a drafter for a model on disk. Raises ApiError for a wish that cannot be granted."""
        try:
            plan = await asyncio.to_thread(self._trainer.plan, wish)
        except TrainError as error:
            raise ApiError(409 if error.param in ("id", "output_id") else 400, str(error), param=error.param) from error
        except UnknownModelError as error:
            raise ApiError(404, str(error), param="id", code="model_not_found") from error
        except (CatalogError, PullError) as error:
            raise ApiError(409, str(error)) from error
        running = self._jobs.running(TRAIN_DRAFTER, wish.model_id)
        if running is not None:
            if self._training.get(wish.model_id) == wish:
                return running
            remedy = f"Wait for it, or cancel the job {running.id}"
            raise ApiError(409, f"a drafter for {wish.model_id} is being trained already", remedy=remedy)

        async def work(handle: JobHandle) -> JobResult:
            def report(line: JobLine) -> None:
                if line.stage == "measured":
                    handle.log(line.message)
                handle.stage(line.stage, line.done, line.total, "steps", line.message)

            try:
                result = await self._trainer.run(plan, report, handle.log)
            except (EngineJobError, EngineJobStopped, OSError) as error:
                raise JobError(str(error)) from error
            made = f"trained {plan.output_id} for {plan.model.id}"
            unmade = f"{plan.output_id} for {plan.model.id} is no drafter yet: {result['figures'].get('reason')}"
            self._events.add(TRAIN_DRAFTER, "info", made if result["path"] else unmade)
            return result

        self._training[wish.model_id] = wish
        return self._jobs.start(TRAIN_DRAFTER, wish.model_id, work)

    def remove(self, model_id: str) -> None:
        """Delete a model from the disk."""
        engine = self._engines.of_model(model_id)
        if (engine is not None and engine.supervisor.alive) or self._jobs.running("load", model_id) is not None:
            raise ApiError(409, f"{model_id} is loaded", remedy="Unload it first")
        if (quantizing := self._jobs.running(QUANTIZE, model_id)) is not None:
            raise ApiError(409, f"{model_id} is being quantised", remedy=f"Cancel the job {quantizing.id} first")
        if (training := self._jobs.running(TRAIN_DRAFTER, model_id)) is not None:
            remedy = f"Cancel the job {training.id} first"
            raise ApiError(409, f"a drafter for {model_id} is being trained", remedy=remedy)
        try:
            self._catalog.remove(model_id)
        except UnknownModelError as error:
            raise ApiError(404, str(error), param="id") from error
        except CatalogError as error:
            raise ApiError(409, str(error), param="id") from error
        except OSError as error:
            reason = f"{model_id} could not be deleted: {error.strerror or error} ({error.filename})"
            raise ApiError(500, reason, remedy="Check who owns the file, or delete it by hand") from error

    async def bring_up(self, model_id: str, options: LoadOptions) -> None:
        """Load a model at start-up; one that is only in the catalogue is pulled first."""
        try:
            self._catalog.resolve(model_id)
        except CatalogError as error:
            if self._catalog.entry(model_id) is None:
                self._events.add("start", "error", f"the model to start with: {error}")
                return
            pulled = await self._jobs.wait(self.pull(PullWish(model_id)).id)
            if pulled.state != "succeeded":
                self._events.add("start", "error", f"{model_id} could not be fetched: {pulled.error}")
                return
        try:
            loading = self.load(model_id, options)
        except ApiError:
            return  # somebody was faster and loaded it while it was fetched
        loaded = await self._jobs.wait(loading.id)
        if loaded.state != "succeeded":
            self._events.add("start", "error", f"{model_id} could not be loaded: {loaded.error}")
