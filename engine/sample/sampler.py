"""Draws one token per row of logits.

Greedy rows take the largest logit that the processor chain leaves. Others are drawn by the op `draw`: the largest of
score + Gumbel noise, which is an exact draw from the softmax of the scores. Ties go to the lowest id. Each op is called
for all rows at once; what one row asks for and another does not, the op passes over there.
Invariant: a row's token depends on its logits, its `SamplingRow`, and on nothing else; a row that cannot be drawn has a
fault of its own and spoils no other. The caller's logits are never written to.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.outputs import Logprobs
from engine.sample.filters import filter_rows, is_filtered
from engine.sample.logprobs import NO_TOKEN, log_probabilities
from engine.sample.processors import adjust, is_adjusted
from engine.sample.row import SamplingRow
from kernels.noise import Stream
from kernels.ops import Ops

NO_TOKEN_LEFT = (
    "no token is left to draw: bad_words, logit_bias, allowed_token_ids, min_tokens and the grammar forbid all of them"
)
PASSED_OVER = (0, 0, 0, (1 << 64) - 1)  # the address of a row that is not drawn: its stream is -1


@dataclass(slots=True)
class Drawn:
    """What became of some rows of logits.

    token_ids: of each row. faults: rows that have none, and why. processed: the rows whose scores, as the chain and the
    filters left them, lie in `Sampler.scores`.
    """

    token_ids: list[int]
    faults: dict[int, str]
    processed: set[int]


class Sampler:
    """Draws with one set of ops. The scores of rows that are not drawn from their logits lie in a buffer of its own."""

    def __init__(self, ops: Ops, logits: Tensor) -> None:
        """logits: of the largest step, [S, V] in fp32 or fp64. A buffer like it is allocated when first needed."""
        self._ops = ops
        self._like = logits
        self._buffer: Tensor | None = None
        self._values = torch.empty(len(logits), dtype=logits.dtype, device=logits.device)
        self._ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)

    @torch.inference_mode()
    def draw(self, logits: Tensor, rows: Sequence[SamplingRow], kept: Collection[int] = ()) -> Drawn:
        """One token per row. logits: [len(rows) or more, V]; rows past len(rows) are padding.

        kept: rows that are not drawn, but have their scores put into `scores`, for somebody else to draw from.
        """
        logits = logits[: len(rows)]
        token_ids, faults = self._best(logits)
        adjusted = [index for index, row in enumerate(rows) if index not in faults and is_adjusted(row)]
        if adjusted:
            self._adjust(logits, rows, adjusted, token_ids, faults)
        processed = set(adjusted)  # the rows whose scores lie in the buffer
        noisy = [index for index, row in enumerate(rows) if not row.sampling.greedy and index not in faults]
        if noisy:
            processed |= self._draw(logits, rows, noisy, processed, kept, token_ids)
        return Drawn(token_ids, faults, processed)

    @property
    def device(self) -> torch.device:
        """Where logits lie."""
        return self._ids.device

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffer of scores, 0 as long as no row needed it."""
        return 0 if self._buffer is None else self._buffer.nbytes

    def scores(self, count: int) -> Tensor:
        """The first rows of the buffer [count, V]. Only those that a draw calls processed mean something."""
        if self._buffer is None:
            self._buffer = torch.empty_like(self._like)
        return self._buffer[:count]

    def _best(self, logits: Tensor) -> tuple[list[int], dict[int, str]]:
        """The token of the largest logit in each row, and the faults of rows where that is not finite."""
        count = len(logits)
        self._ops.peaks(self._values[:count], self._ids[:count], logits)
        values: list[float] = self._values[:count].tolist()
        faults = {index: _fault(value) for index, value in enumerate(values) if not math.isfinite(value)}
        return self._ids[:count].tolist(), faults

    def _adjust(
        self,
        logits: Tensor,
        rows: Sequence[SamplingRow],
        adjusted: list[int],
        token_ids: list[int],
        faults: dict[int, str],
    ) -> None:
        """Puts the logits that processors touch into the buffer, and what comes of them into token_ids and faults."""
        scores = self.scores(len(rows))
        for index in adjusted:
            scores[index].copy_(logits[index])
        adjust(scores, {index: rows[index] for index in adjusted})
        first = adjusted[0]
        best, found = self._best(scores[first : adjusted[-1] + 1])
        for index in adjusted:
            token_ids[index] = best[index - first]
            if index - first in found:
                faults[index] = found[index - first]

    def _draw(
        self,
        logits: Tensor,
        rows: Sequence[SamplingRow],
        noisy: list[int],
        processed: Collection[int],
        kept: Collection[int],
        token_ids: list[int],
    ) -> set[int]:
        """Draws the rows `noisy`, but for those `kept`, into token_ids. `processed`: whose scores lie in the buffer.
        Returns who came in."""
        filtered = {i: rows[i] for i in noisy if is_filtered(rows[i].sampling) or (i in kept and i not in processed)}
        ours = {index for index in noisy if index in filtered or index in processed}
        if ours:
            scores = self.scores(len(rows))
            filter_rows(scores, logits, {i: row for i, row in filtered.items() if i not in processed}, self._ops)
            filter_rows(scores, scores, {i: row for i, row in filtered.items() if i in processed}, self._ops)
            if not ours.issubset(kept):
                self._draw_rows(scores, rows, ours.difference(kept))
        if len(ours) < len(noisy):
            self._draw_rows(logits, rows, set(noisy) - ours)
        drawn = self._ids[: len(rows)].tolist()
        for index in noisy:
            if index not in kept:
                token_ids[index] = drawn[index]
        return ours

    def _draw_rows(self, scores: Tensor, rows: Sequence[SamplingRow], wanted: Collection[int]) -> None:
        """Tokens of the rows `wanted` of scores, with finite ones in them, into `_ids`."""
        numbers = array("Q")  # a seed has 64 bits without a sign
        for index, row in enumerate(rows):
            numbers.extend(row.address(Stream.TARGET) if index in wanted else PASSED_OVER)
        addresses = torch.frombuffer(numbers, dtype=torch.int64).view(-1, 4).to(scores.device)
        self._ops.draw(self._ids[: len(rows)], scores, addresses)

    @torch.inference_mode()
    def logprobs(
        self, logits: Tensor, rows: Sequence[SamplingRow], processed: Collection[int], token_ids: Sequence[int]
    ) -> dict[int, Logprobs]:
        """Of the rows that want them and have a token: one entry each, of what was drawn from where a row says so, else
        of the logits. processed: see `Drawn`. token_ids: NO_TOKEN where a row has none."""
        asked = {
            index: row.sampling.logprobs
            for index, row in enumerate(rows)
            if row.sampling.logprobs is not None and token_ids[index] != NO_TOKEN
        }
        inside = {i for i in asked if i in processed and rows[i].sampling.logprobs_mode == "processed"}
        found: dict[int, Logprobs] = {}
        for wanted in (inside, asked.keys() - inside):
            if not wanted:
                continue
            source = self.scores(len(rows)) if wanted is inside else logits[: len(rows)]
            wishes = [token_id if i in wanted else NO_TOKEN for i, token_id in enumerate(token_ids)]
            listed = log_probabilities(source, wishes, max(asked[i] for i in wanted), self._ops)
            for i in wanted:
                most = asked[i]
                found[i] = Logprobs(
                    [listed.logprobs[i]], [listed.top_token_ids[i][:most]], [listed.top_logprobs[i][:most]]
                )
        return found


def _fault(peak: float) -> str:
    """What a largest logit that is not finite says about a row."""
    if peak == -math.inf:
        return NO_TOKEN_LEFT
    return f"the model's largest logit is {peak}; its weights or its dtype are at fault"
