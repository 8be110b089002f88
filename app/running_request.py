"""One request from prompt tokens to text.

Owns the checks before a request, the stream of what its samples say, its figures, its course and its row. Knows nothing
of HTTP shapes, conversations or the records. Invariant: however the consumer leaves (end, error, cancellation), the
engine is told in `finally`, and the row ends as "finished" or "failed" with the tokens that count.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from app.engine_client import EngineGone, RequestStream
from app.engines import Engine
from app.errors import ApiError
from app.request_bodies import BodyKeeper, GivenTexts
from app.request_figures import arrival_figures, stop_cause, summary_figures
from app.request_timeline import ServerMarks, timeline
from app.sample_text import Piece, SampleText
from db.request_rows import RequestBodyRow
from db.rows import RequestRow
from engine.core.outputs import Logprobs, RequestOutput, RequestProgress
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import DEFAULT_SPECULATION, SpeculationParams
from engine.protocol import AddRequest

PROGRESS_S = 1.0  # a running answer's tokens are told no more often

Change = Literal["row", "progress", "late"]  # begun, first token or ended; on its way; summed up after the end


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
    given: GivenTexts | None = None


class Generation:
    """A request and, while `pieces` is consumed, the progress of its samples. `row` holds the figures."""

    def __init__(
        self,
        engine: Engine,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        options: RequestOptions,
        source: str,
        on_change: Callable[[Generation, Change], None],
        keeper: BodyKeeper | None = None,
    ) -> None:
        self.engine = engine
        self.keeper = keeper
        self.progress: RequestProgress | None = None  # what the engine last told of its prompt
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
        wish = options.speculation  # what the engine makes of it: see `Speculator.settle`
        self.rule = "match" if sampling.guided is not None else wish.rule or engine.speculation.rule
        most = engine.speculation.num_speculative_tokens
        self.most_drafts = min(wish.num_speculative_tokens or most, most)
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
        self._told = self._started  # when its progress was last passed on
        self._prefill_s: float | None = None
        self._cancelled = False
        self._waits = False  # as the engine said since the last token

    @property
    def id(self) -> str:
        return self.row.id

    def cancel(self) -> None:
        """End it with what there is; the finish reason will be "abort"."""
        self._cancelled = True
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
        self._on_change(self, "row")
        try:
            stream = client.submit(self.message)
            stream.on_progress = self._progressed
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
                stream.on_late = self._late
                client.abort(self.id, self.samples[0].num_tokens if len(self.samples) == 1 else None)
            self._close()

    def _take(self, row: RequestOutput, sample: SampleText) -> Piece:
        if row.finish_reason == "error":
            raise engine_refusal(row.error or "", self._options.grammar_field)
        if row.prompt_logprobs is not None:
            self.prompt_logprobs = row.prompt_logprobs
        self.pooled = row.pooled
        piece = sample.take(row, row.index)
        if self.keeper is not None:
            self.keeper.take(piece.index, piece.text)
        self._waits = self._waits and not row.token_ids
        if row.token_ids and self.row.state == "queued":
            self._change(state="running", ttft_s=sample.arrivals[0][0] - self._started)
        elif row.token_ids and time.monotonic() - self._told >= PROGRESS_S:
            self._tell_progress(num_output_tokens=sum(each.num_tokens for each in self.samples))
        return piece

    def _progressed(self, progress: RequestProgress) -> None:
        if progress == self.progress or self.row.finished_at is not None:
            return
        self.progress, self._waits = progress, True
        if progress.state == "prefill" and self._prefill_s is None:
            self._prefill_s = time.monotonic() - self._started
        self._tell_progress()

    @property
    def progress_matters(self) -> bool:
        """Whether it waits for the engine: it has no token yet, or lost its blocks."""
        return self._waits and self.row.finished_at is None

    def _tell_progress(self, **figures: int) -> None:
        self._told = time.monotonic()
        self.row = dataclasses.replace(self.row, **figures)  # type: ignore[arg-type]
        self._on_change(self, "progress")

    def _late(self, row: RequestOutput) -> None:
        """A row after its consumer has left: what the engine sums up belongs to the records all the same."""
        sample = self.samples[row.index]
        sample.summary = row.summary or sample.summary
        if row.summary is not None:
            self.row = dataclasses.replace(self.row, **summary_figures(self.samples))  # type: ignore[arg-type]
            self._on_change(self, "late")

    def timeline(self) -> dict[str, Any]:
        """Its course up to now, or to its end."""
        first = self.samples[0]
        arrivals = sorted(arrival for sample in self.samples for arrival, _ in sample.arrivals)
        marks = ServerMarks(
            received_t=self.row.created_at,
            end_s=self.row.e2e_s if self.row.e2e_s is not None else time.monotonic() - self._started,
            prefill_s=self._prefill_s,
            first_token_s=arrivals[0] - self._started if arrivals else None,
            last_token_s=arrivals[-1] - self._started if arrivals and self.row.e2e_s is not None else None,
        )
        timing = None if first.summary is None else first.summary.timing
        return timeline(marks, timing, self.progress, num_samples=len(self.samples))

    def body(self) -> RequestBodyRow | None:
        """Its texts, where they are kept."""
        if self.keeper is None:
            return None
        message, row = self.message, self.row
        return self.keeper.body(
            row.id,
            row.created_at,
            self.engine.vocab,
            message.prompt_token_ids,
            message.sampling,
            self._options.given,
            stop=self._options.stop,
            seed=row.seed,
        )

    def _close(self) -> None:
        self._change(
            state="failed" if self.error is not None else "finished",
            finished_at=time.time(),
            finish_reason="error" if self.error is not None else self.samples[0].finish_reason or "abort",
            stop_cause=self._stop_cause(),
            error=None if self.error is None else self.error.detail,
            e2e_s=time.monotonic() - self._started,
            **arrival_figures(self.samples),
            **summary_figures(self.samples),
        )
        self._on_change(self, "row")

    def _stop_cause(self) -> str:
        if self.error is not None:
            causes = {"engine_failed": "engine_gone", "invalid_grammar": "invalid_grammar"}
            return causes.get(self.error.code or "", "engine_error")
        first = self.samples[0]
        if first.finish_reason in (None, "abort"):
            return "cancelled" if self._cancelled else "client_gone"
        return stop_cause(first, self.message, self.engine.vocab, self.engine.ready.max_model_len)

    def token_gaps(self) -> list[float]:
        """The times from token to token within each sample."""
        return [gap for sample in self.samples for gap in sample.token_gaps()]

    def _change(self, **changes: object) -> None:
        state = self.row.state
        self.row = dataclasses.replace(self.row, **changes)  # type: ignore[arg-type]
        if state == "queued" and self.row.state == "running":
            self._on_change(self, "row")


def engine_failed(gone: EngineGone) -> ApiError:
    """The end of an engine, in the API's terms."""
    return ApiError(503, str(gone), remedy="Load the model again", code="engine_failed")


def engine_refusal(error: str, grammar_field: str | None) -> ApiError:
    """An engine's error row, in the API's terms."""
    if error.startswith("guided: "):
        remedy = "Correct the grammar or leave it out"
        return ApiError(400, error.removeprefix("guided: "), param=grammar_field, remedy=remedy, code="invalid_grammar")
    return ApiError(500, f"the engine refused the request: {error}", code="engine_error")
