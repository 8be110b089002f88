"""One request from prompt tokens to text: the path that /v1 and conversations share.

Owns the checks before a request, the stream of text, its figures and its row in the records. Knows nothing of HTTP
shapes or conversations. Invariant: however the consumer leaves (end, error, cancellation), the engine is told in
`finally`, and the row ends as "finished" or "failed" with the tokens that count.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from app.engine_client import EngineGone, RequestStream
from app.engines import Engine
from app.errors import ApiError
from app.live import LiveHub
from app.recorder import Recorder
from app.text import IncrementalDetokenizer, StopStringMatcher
from app.writes import unwatched
from db.rows import RequestRow
from db.store import Store
from engine.core.outputs import RequestOutput, RequestSummary
from engine.core.sampling_params import SamplingError, SamplingParams
from engine.protocol import AddRequest

log = logging.getLogger(__name__)

TTFT_WINDOW_S = 300.0


def sampling_params(**fields: float | int | tuple[int, ...] | bool | None) -> SamplingParams:
    """SamplingParams from request fields (None: the default); a bad value is a 400 that names the field."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return SamplingParams(**given)  # type: ignore[arg-type]
    except SamplingError as error:
        raise ApiError(400, str(error), param=error.param, code="invalid_value") from error


def room_for_output(engine: Engine, num_prompt_tokens: int, max_tokens: int | None, *, clip: bool = False) -> int:
    """How many tokens may come out. A context that does not hold the request is a 400 with the numbers."""
    context = engine.ready.max_model_len
    room = context - num_prompt_tokens
    if num_prompt_tokens == 0:
        raise ApiError(400, "the prompt is empty: it has no tokens", param="prompt", code="empty_prompt")
    if room <= 0 or (max_tokens is not None and max_tokens > room and not clip):
        asked = "" if max_tokens is None or clip else f" and max_tokens asks for {max_tokens}"
        raise ApiError(
            400,
            f"context too long: the prompt has {num_prompt_tokens} tokens{asked}, but the context of "
            f"{engine.model_id} holds {context}",
            param="prompt" if room <= 0 else "max_tokens",
            remedy="Shorten the prompt, lower max_tokens, or load the model with a larger max_model_len",
            code="context_length_exceeded",
        )
    return room if max_tokens is None else min(room, max_tokens)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all values do not exceed; None of none."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)] if values else None


class Generation:
    """A request and, while `deltas` is consumed, its progress. `row` holds the figures."""

    def __init__(
        self,
        engine: Engine,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        stop: Sequence[str],
        source: str,
        on_change: Callable[[Generation], None],
    ) -> None:
        self.engine = engine
        self.error: ApiError | None = None
        self.row = RequestRow(
            id=uuid.uuid4().hex,
            engine_run_id=engine.supervisor.run_id,
            model_id=engine.model_id,
            source=source,
            state="queued",
            created_at=time.time(),
            num_prompt_tokens=len(prompt_token_ids),
            num_output_tokens=0,
            seed=sampling.seed,
        )
        self._message = AddRequest(self.row.id, list(prompt_token_ids), sampling)
        self._detokenizer = IncrementalDetokenizer(engine.vocab)
        self._matcher = StopStringMatcher(stop)
        self._on_change = on_change
        self._started = time.monotonic()
        self._num_tokens = 0
        self._arrivals: list[tuple[float, int]] = []  # (when, tokens so far) of each row that brought tokens
        self._summary: RequestSummary | None = None
        self._finish_reason: str | None = None

    @property
    def id(self) -> str:
        return self.row.id

    def cancel(self) -> None:
        """End it with what there is; the finish reason will be "abort"."""
        self.engine.supervisor.client.abort(self.id)

    async def deltas(self) -> AsyncGenerator[str]:
        """The text as it comes. Raises ApiError when the engine fails."""
        client = self.engine.supervisor.client
        stream: RequestStream | None = None
        self._on_change(self)
        try:
            stream = client.submit(self._message)
            while self._finish_reason is None:
                text = self._take(await stream.next())
                if text:
                    yield text
            if not stream.finished:  # a stop string ended the text: the engine is told and its last figures awaited
                client.abort(self.id, self._num_tokens)
                while not stream.finished:
                    self._summary = (await stream.next()).summary or self._summary
        except EngineGone as error:
            self.error = ApiError(503, str(error), remedy="Load the model again", code="engine_failed")
            raise self.error from error
        except ApiError as error:
            self.error = error
            raise
        finally:
            if stream is not None and not stream.finished:
                client.abort(self.id, self._num_tokens)
            self._close()

    def _take(self, row: RequestOutput) -> str:
        """The text that a row adds."""
        if row.finish_reason == "error":
            raise ApiError(500, f"the engine refused the request: {row.error}", code="engine_error")
        if row.token_ids:
            self._arrivals.append((time.monotonic(), len(row.token_ids)))
            if self.row.state == "queued":
                self._change(state="running", ttft_s=self._arrivals[0][0] - self._started)
        # the token that ended the answer counts, and is not part of the text
        shown = row.token_ids[:-1] if row.finish_reason == "stop" else row.token_ids
        pieces = []
        for token_id in shown:
            self._num_tokens += 1
            pieces.append(self._matcher.push(self._detokenizer.push((token_id,))))
            if self._matcher.matched is not None:
                self._finish_reason = "stop"
                self._summary = row.summary
                return "".join(pieces)
        self._num_tokens += len(row.token_ids) - len(shown)
        if row.finish_reason is not None:
            pieces += [self._matcher.push(self._detokenizer.finish()), self._matcher.finish()]
            self._finish_reason = row.finish_reason
            self._summary = row.summary
        return "".join(pieces)

    def _close(self) -> None:
        now = time.monotonic()
        summary = self._summary
        decode_s = self._arrivals[-1][0] - self._arrivals[0][0] if len(self._arrivals) > 1 else 0.0
        decoded = self._num_tokens - (self._arrivals[0][1] if self._arrivals else 0)
        self._change(
            state="failed" if self.error is not None else "finished",
            finished_at=time.time(),
            finish_reason="error" if self.error is not None else self._finish_reason or "abort",
            error=None if self.error is None else self.error.detail,
            num_output_tokens=self._num_tokens,
            e2e_s=now - self._started,
            itl_p95_s=percentile(self.token_gaps(), 0.95),
            tokens_per_s=decoded / decode_s if decode_s > 0 and decoded > 0 else None,
        )
        if summary is not None:
            self._change(
                num_cached_tokens=summary.num_cached_tokens,
                num_preemptions=summary.num_preemptions,
                queue_s=summary.timing.queue_s,
                drafts=summary.drafts,
                drafted=summary.drafted,
                accepted=summary.accepted,
                seed=summary.seed,
            )
        self._on_change(self)

    def token_gaps(self) -> list[float]:
        """The times from token to token; a row of several tokens shares its wait among them."""
        gaps = []
        for (before, _), (after, count) in zip(self._arrivals, self._arrivals[1:], strict=False):
            gaps += [(after - before) / count] * count
        return gaps

    def _change(self, **changes: object) -> None:
        state = self.row.state
        self.row = dataclasses.replace(self.row, **changes)  # type: ignore[arg-type]
        if state == "queued" and self.row.state == "running":
            self._on_change(self)


class Generations:
    """Prepares generations, knows those that run, and writes each down at its start and its end."""

    def __init__(self, store: Store, hub: LiveHub, recorder: Recorder) -> None:
        self._store = store
        self._hub = hub
        self._recorder = recorder
        self._running: dict[str, Generation] = {}
        self._ttfts: deque[tuple[float, str, float]] = deque(maxlen=1000)  # (when, engine run, seconds)

    def prepare(
        self,
        engine: Engine,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stop: Sequence[str] = (),
        source: str,
    ) -> Generation:
        """A generation that starts, and leaves traces, when its deltas are consumed."""
        return Generation(engine, prompt_token_ids, sampling, stop, source, self._changed)

    def running_rows(self) -> dict[str, RequestRow]:
        """The rows of running requests, newer than what the records hold."""
        return {generation.id: generation.row for generation in self._running.values()}

    def ttft_p95(self, engine_run_id: str) -> float | None:
        """Time to first token of the engine's requests that ended in the last minutes."""
        since = time.time() - TTFT_WINDOW_S
        return percentile([ttft for t, run_id, ttft in self._ttfts if run_id == engine_run_id and t >= since], 0.95)

    def cancel(self, request_id: str) -> None:
        generation = self._running.get(request_id)
        if generation is None:
            raise ApiError(404, f"no running request has the id {request_id!r}", param="id")
        generation.cancel()

    def _changed(self, generation: Generation) -> None:
        row = generation.row
        if row.finished_at is not None:
            self._running.pop(generation.id, None)
            self._observe(generation)
        else:
            self._running[generation.id] = generation
        if row.state != "running":  # its start and its end are kept; what lies between is only told
            unwatched(self._store.save_request(row))
        self._hub.publish("requests", dataclasses.asdict(row))

    def _observe(self, generation: Generation) -> None:
        """Count the request's latencies."""
        row = generation.row
        run_id = generation.engine.supervisor.run_id
        if row.ttft_s is not None:
            self._ttfts.append((time.time(), run_id, row.ttft_s))
            self._recorder.observe_ttft(run_id, row.ttft_s)
        for gap in generation.token_gaps():
            self._recorder.observe_itl(run_id, gap)
