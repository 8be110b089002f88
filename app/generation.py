"""All requests that run, and the path to a new one: what /v1 and conversations share.

Owns the list of those that run, what is told of them on the live topic `requests`, and when which row is written. A
single request is `app.running_request`. Invariant: a request that begins is written at its start and at its end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from app.engines import Engine
from app.errors import ApiError
from app.live import LiveHub
from app.metrics import Metrics
from app.recorder import Recorder
from app.request_bodies import BodyKeeper
from app.request_figures import percentile as percentile
from app.request_settings import RequestSettings
from app.running_request import Change as Change
from app.running_request import Generation as Generation
from app.running_request import RequestOptions as RequestOptions
from app.running_request import engine_failed as engine_failed
from app.running_request import engine_refusal as engine_refusal
from app.running_request import room_for_output as room_for_output
from app.writes import unwatched
from db.request_rows import RequestFilter
from db.store import Store
from engine.core.sampling_params import SamplingParams

TTFT_WINDOW_S = 300.0
MAX_TOLD = 32  # while more requests run, nobody is told of each one's tokens every second

NO_OPTIONS = RequestOptions()


class Generations:
    """Prepares generations, knows those that run, and writes each down at its start and its end."""

    def __init__(
        self,
        store: Store,
        hub: LiveHub,
        recorder: Recorder,
        metrics: Metrics,
        max_waiting: int,
        settings: RequestSettings,
        follow_trace: Callable[[Generation], None] = lambda generation: None,
    ) -> None:
        """follow_trace: hears of the start and the end of each request that is traced."""
        self._settings = settings
        self._store = store
        self._hub = hub
        self._recorder = recorder
        self._metrics = metrics
        self._max_waiting_requests = max_waiting
        self._follow_trace = follow_trace
        self._running: dict[str, Generation] = {}
        self._saves: set[asyncio.Future[Any]] = set()  # rows on their way to the records
        self._ttfts: deque[tuple[float, str, float]] = deque(maxlen=1000)  # (when, engine run, seconds)

    def prepare(
        self,
        engine: Engine,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        options: RequestOptions = NO_OPTIONS,
        source: str,
    ) -> Generation:
        """A generation that starts, and leaves traces, when its pieces are consumed. Raises ApiError."""
        fault = sampling.token_id_fault(engine.ready.vocab_size)
        if fault is not None:
            raise ApiError(400, str(fault), param=fault.param, code="invalid_value")
        engine.check_queue(self._max_waiting_requests)
        keeper = BodyKeeper(options.n) if self._settings.store_bodies and not options.pooling else None
        return Generation(engine, prompt_token_ids, sampling, options, source, self._changed, keeper)

    def running(self, request_id: str) -> Generation | None:
        """One that has not ended."""
        return self._running.get(request_id)

    def matching(self, wanted: RequestFilter) -> list[Generation]:
        """Those that run and are meant, newest first."""
        return [each for each in reversed(self._running.values()) if wanted.fits(each.row)]

    async def written(self) -> None:
        """Wait until the records hold the rows of all requests that have begun or ended by now."""
        if self._saves:
            await asyncio.wait(list(self._saves))

    def ttft_p95(self, engine_run_id: str) -> float | None:
        """Time to first token of the engine's requests that ended in the last minutes."""
        since = time.time() - TTFT_WINDOW_S
        return percentile([ttft for t, run_id, ttft in self._ttfts if run_id == engine_run_id and t >= since], 0.95)

    def cancel(self, request_id: str) -> None:
        generation = self._running.get(request_id)
        if generation is None:
            raise ApiError(404, f"no running request has the id {request_id!r}", param="id")
        generation.cancel()

    def _changed(self, generation: Generation, change: Change) -> None:
        row = generation.row
        if generation.message.trace and change == "row":
            self._follow_trace(generation)
        if row.finished_at is not None:
            self._settle(generation, change)
        else:
            self._running[generation.id] = generation
            if row.state == "queued" and change == "row":
                self._save(self._store.save_request(row))
        if change != "progress" or generation.progress_matters or len(self._running) <= MAX_TOLD:
            self._hub.publish("requests", live_row(generation))

    def _settle(self, generation: Generation, change: Change) -> None:
        """Write an ended request, and once more when the engine sums it up late."""
        generation.row = row = dataclasses.replace(generation.row, slow=self._settings.is_slow(generation.row))
        body = None
        if change == "row":
            self._running.pop(generation.id, None)
            self._observe(generation)
            body = generation.body() if self._settings.store_bodies else None
        self._save(self._store.save_ended_request(row, generation.timeline(), body))

    def _save(self, write: Future[None]) -> None:
        unwatched(write)
        save = asyncio.wrap_future(write)
        self._saves.add(save)
        save.add_done_callback(self._saved)

    def _saved(self, save: asyncio.Future[Any]) -> None:
        self._saves.discard(save)
        if not save.cancelled():
            save.exception()  # looked at, so that asyncio does not log it once more

    def _observe(self, generation: Generation) -> None:
        """Count the request's latencies."""
        row = generation.row
        run_id = generation.engine.supervisor.run_id
        if row.ttft_s is not None:
            self._ttfts.append((time.time(), run_id, row.ttft_s))
            self._recorder.observe_ttft(run_id, row.ttft_s)
        gaps = generation.token_gaps()
        for gap in gaps:
            self._recorder.observe_itl(run_id, gap)
        self._metrics.observe(row, gaps)


def live_row(generation: Generation) -> dict[str, Any]:
    """A request's row with, while it has no token, how far its prompt is."""
    progress = generation.progress if generation.progress_matters else None
    return {
        **dataclasses.asdict(generation.row),
        "progress": None if progress is None else dataclasses.asdict(progress),
    }
