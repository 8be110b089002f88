"""One request from prompt tokens to text: the path that /v1 and conversations share.

Owns the checks before a request, the stream of what its samples say, its figures and its row in the records. Knows
nothing of HTTP shapes or conversations. Invariant: however the consumer leaves (end, error, cancellation), the engine
is told in `finally`, and the row ends as "finished" or "failed" with the tokens that count.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from app.engine_client import EngineGone, RequestStream
from app.engines import Engine
from app.errors import ApiError
from app.live import LiveHub
from app.metrics import Metrics
from app.recorder import Recorder
from app.sample_text import Piece, SampleText
from app.writes import unwatched
from db.rows import RequestRow
from db.store import Store
from engine.core.outputs import Logprobs, RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import DEFAULT_SPECULATION, SpeculationParams
from engine.protocol import AddRequest

log = logging.getLogger(__name__)

TTFT_WINDOW_S = 300.0


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


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request wants beside its sampling.

    include_stop: a stop string is part of the text it ends. grammar_field: what an unusable grammar is blamed on.
    shown_specials: spellings of special tokens that are text here. pooling: it wants no text but a vector ("last" or
    "mean", see `AddRequest`).
    """

    stop: Sequence[str] = ()
    include_stop: bool = False
    n: int = 1
    cache_salt: str = ""
    priority: int = 0
    grammar_field: str | None = None
    shown_specials: Sequence[str] = ()
    pooling: str = ""
    speculation: SpeculationParams = DEFAULT_SPECULATION
    trace: bool = False


class Generation:
    """A request and, while `pieces` is consumed, the progress of its samples. `row` holds the figures."""

    def __init__(
        self,
        engine: Engine,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        options: RequestOptions,
        source: str,
        on_change: Callable[[Generation], None],
    ) -> None:
        self.engine = engine
        self.error: ApiError | None = None
        self.prompt_logprobs: Logprobs | None = None  # where asked for: known before the first piece
        self.pooled: list[float] | None = None  # where asked for: the vector, known at the end
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
            proposer=None if options.pooling else engine.proposer_of(options.speculation),
        )
        self.rule = options.speculation.rule or engine.speculation.rule
        self.message = AddRequest(
            self.row.id,
            list(prompt_token_ids),
            sampling,
            options.priority,
            options.cache_salt,
            options.n,
            options.pooling,
            options.speculation,
            options.trace,
        )
        self.samples = [
            SampleText(
                engine.vocab,
                sampling,
                options.stop,
                include_stop=options.include_stop,
                shown_specials=options.shown_specials,
            )
            for _ in range(options.n)
        ]
        self._options = options
        self._on_change = on_change
        self._started = time.monotonic()

    @property
    def id(self) -> str:
        return self.row.id

    def cancel(self) -> None:
        """End it with what there is; the finish reason will be "abort"."""
        self.engine.supervisor.client.abort(self.id)

    async def deltas(self) -> AsyncGenerator[str]:
        """The text of a request with one sample as it comes. Raises ApiError when the engine fails."""
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                if piece.text:
                    yield piece.text

    async def pieces(self) -> AsyncGenerator[Piece]:
        """What comes of each sample, as it comes. Raises ApiError when the engine fails."""
        client = self.engine.supervisor.client
        stream: RequestStream | None = None
        self._on_change(self)
        try:
            stream = client.submit(self.message)
            while not stream.finished:  # also while the last figures of samples that a stop string ended are awaited
                row = await stream.next()
                sample = self.samples[row.index]
                running = sample.finish_reason is None
                piece = self._take(row, sample)
                if running and sample.stopped:
                    client.abort(self.id, sample.num_tokens, row.index)
                if piece.text or piece.logprobs:
                    yield piece
        except EngineGone as error:
            self.error = engine_failed(error)
            raise self.error from error
        except ApiError as error:
            self.error = error
            raise
        finally:
            if stream is not None and not stream.finished:
                client.abort(self.id, self.samples[0].num_tokens if len(self.samples) == 1 else None)
            self._close()

    def _take(self, row: RequestOutput, sample: SampleText) -> Piece:
        if row.finish_reason == "error":
            raise engine_refusal(row.error or "", self._options.grammar_field)
        if row.prompt_logprobs is not None:
            self.prompt_logprobs = row.prompt_logprobs
        self.pooled = row.pooled
        piece = sample.take(row, row.index)
        if row.token_ids and self.row.state == "queued":
            self._change(state="running", ttft_s=sample.arrivals[0][0] - self._started)
        return piece

    def _close(self) -> None:
        now = time.monotonic()
        arrivals = sorted(arrival for sample in self.samples for arrival in sample.arrivals)
        decode_s = arrivals[-1][0] - arrivals[0][0] if arrivals else 0.0
        num_tokens = sum(sample.num_tokens for sample in self.samples)
        decoded = num_tokens - (arrivals[0][1] if arrivals else 0)
        self._change(
            state="failed" if self.error is not None else "finished",
            finished_at=time.time(),
            finish_reason="error" if self.error is not None else self.samples[0].finish_reason or "abort",
            error=None if self.error is None else self.error.detail,
            num_output_tokens=num_tokens,
            e2e_s=now - self._started,
            itl_p95_s=percentile(self.token_gaps(), 0.95),
            tokens_per_s=decoded / decode_s if decode_s > 0 and decoded > 0 else None,
            **self._summary_figures(),
        )
        self._on_change(self)

    def _summary_figures(self) -> dict[str, object]:
        """What the engine said at the end: of the first sample where the samples share it, else in sum."""
        summaries = [sample.summary for sample in self.samples if sample.summary is not None]
        if not summaries:
            return {}
        first = summaries[0]
        summed: dict[str, object] = {
            name: sum(getattr(each, name) for each in summaries)
            for name in ("num_preemptions", "drafts", "drafted", "accepted", "draft_s", "verify_s")
        }
        summed |= {
            name: sum_positions([getattr(each, name) for each in summaries])
            for name in ("accepted_per_position", "drafted_per_position")
        }
        shared = {"num_cached_tokens": first.num_cached_tokens, "queue_s": first.timing.queue_s, "seed": first.seed}
        return {**shared, **summed}

    def token_gaps(self) -> list[float]:
        """The times from token to token within each sample."""
        return [gap for sample in self.samples for gap in sample.token_gaps()]

    def _change(self, **changes: object) -> None:
        state = self.row.state
        self.row = dataclasses.replace(self.row, **changes)  # type: ignore[arg-type]
        if state == "queued" and self.row.state == "running":
            self._on_change(self)


def sum_positions(counts: Sequence[Sequence[int]]) -> list[int]:
    """Counts per position of several requests, added up; they need not be equally long."""
    length = max(map(len, counts), default=0)
    return [sum(each[position] for each in counts if position < len(each)) for position in range(length)]


def engine_failed(gone: EngineGone) -> ApiError:
    """The end of an engine, in the API's terms."""
    return ApiError(503, str(gone), remedy="Load the model again", code="engine_failed")


def engine_refusal(error: str, grammar_field: str | None) -> ApiError:
    """An engine's error row, in the API's terms."""
    if error.startswith("guided: "):
        remedy = "Correct the grammar or leave it out"
        return ApiError(400, error.removeprefix("guided: "), param=grammar_field, remedy=remedy, code="invalid_grammar")
    return ApiError(500, f"the engine refused the request: {error}", code="engine_error")


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
        follow_trace: Callable[[Generation], None] = lambda generation: None,
    ) -> None:
        """follow_trace: hears of the start and the end of each request that is traced."""
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
        return Generation(engine, prompt_token_ids, sampling, options, source, self._changed)

    def running_rows(self) -> dict[str, RequestRow]:
        """The rows of running requests, newer than what the records hold."""
        return {generation.id: generation.row for generation in self._running.values()}

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

    def _changed(self, generation: Generation) -> None:
        row = generation.row
        if generation.message.trace:
            self._follow_trace(generation)
        if row.finished_at is not None:
            self._running.pop(generation.id, None)
            self._observe(generation)
        else:
            self._running[generation.id] = generation
        if row.state != "running":  # its start and its end are kept; what lies between is only told
            self._save(row)
        self._hub.publish("requests", dataclasses.asdict(row))

    def _save(self, row: RequestRow) -> None:
        write = self._store.save_request(row)
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
