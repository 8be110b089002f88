"""One sample's way from the engine's rows to text: characters, stop strings, log probabilities, figures.

Owns what of the tokens counts. Knows nothing of the request around it or of what an answer looks like on the wire.
Invariant: however the rows are cut, the pieces joined are the same text, and the log probabilities joined are those of
the tokens that the text is made of.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from app.text import IncrementalDetokenizer, ShownSpecials, StopStringMatcher, TokenBytes
from engine.core.outputs import Logprobs, RequestOutput, RequestSummary
from engine.core.sampling_params import SamplingParams
from engine.vocab import Vocab


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log probability, None where there is none: a prompt's first token has nothing before it.

    offset: where it begins in the text, in characters. top: the most likely tokens at its place, best first.
    """

    token_id: int
    logprob: float | None
    offset: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one row added to a sample."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class SampleText:
    """A sample and its progress; `finish_reason` is None while it grows."""

    def __init__(
        self,
        vocab: Vocab,
        sampling: SamplingParams,
        stop: Sequence[str],
        *,
        include_stop: bool,
        shown_specials: Sequence[str] = (),
    ) -> None:
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.summary: RequestSummary | None = None
        self.last_token_id: int | None = None
        self.arrivals: list[tuple[float, int]] = []  # (when, how many) of each row that brought tokens
        self.token_bytes: TokenBytes = ShownSpecials(vocab, shown_specials) if shown_specials else vocab
        self._detokenizer = IncrementalDetokenizer(self.token_bytes)
        self._matcher = StopStringMatcher(stop, include=include_stop)
        self._min_tokens = sampling.min_tokens
        ends = (() if sampling.ignore_eos else vocab.eos_token_ids) + sampling.stop_token_ids
        self._end_token_ids = frozenset(ends)
        self._guided = sampling.guided is not None
        self._num_decoded = 0
        self._num_released = 0
        self._held: deque[TokenLogprob] = deque()  # of tokens whose text is not out yet

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it, which the engine does not know."""
        return self.matched_stop is not None

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended it."""
        return self._matcher.matched

    @property
    def num_characters(self) -> int:
        """Of the text that is out."""
        return self._num_released

    def take(self, row: RequestOutput, index: int) -> Piece:
        """What a row adds. Rows that come after the end only bring the summary."""
        self.summary = row.summary or self.summary
        if self.finish_reason is not None:
            return Piece(index, "")
        if row.token_ids:
            self.arrivals.append((time.monotonic(), len(row.token_ids)))
            self.last_token_id = row.token_ids[-1]
        shown = self._shown(row)
        text = "".join([self._push(token_id, row.logprobs, place) for place, token_id in enumerate(shown)])
        if self.stopped:
            self.finish_reason = "stop"
        else:
            self.num_tokens += len(row.token_ids) - len(shown)
            if row.finish_reason is not None:
                text += self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()
                self.finish_reason = row.finish_reason
        self._num_released += len(text)
        return Piece(index, text, tuple(self._release()))

    def token_gaps(self) -> list[float]:
        """The times from token to token; a row of several tokens shares its wait among them."""
        gaps = []
        for (before, _), (after, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(after - before) / count] * count
        return gaps

    def _shown(self, row: RequestOutput) -> Sequence[int]:
        """The tokens of a row that are text: the one that ends an answer counts, and is not part of it."""
        if row.finish_reason != "stop":
            return row.token_ids
        completed_grammar = self._guided and not self._end_token_ids.intersection(row.token_ids[-1:])
        return row.token_ids if completed_grammar else row.token_ids[:-1]

    def _push(self, token_id: int, logprobs: Logprobs | None, place: int) -> str:
        """The text that a token sets free. After a stop string nothing more counts."""
        if self.stopped:
            return ""
        self.num_tokens += 1
        if logprobs is not None:
            top = zip(logprobs.top_token_ids[place], logprobs.top_logprobs[place], strict=True)
            self._held.append(TokenLogprob(token_id, logprobs.logprobs[place], self._num_decoded, tuple(top)))
        decoded = self._detokenizer.push((token_id,))
        self._num_decoded += len(decoded)
        return decoded if self.num_tokens < self._min_tokens else self._matcher.push(decoded)

    def _release(self) -> list[TokenLogprob]:
        """The log probabilities of tokens whose text has begun to come out, and at the end of all but cut ones."""
        complete = self.finish_reason is not None and not self.stopped
        released = []
        while self._held and (complete or self._held[0].offset < self._num_released):
            released.append(self._held.popleft())
        return released
