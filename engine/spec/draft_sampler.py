"""Chooses the tokens of a drafter's passes, without waiting for the device between them.

Greedy rows take the likeliest token. Under the rule "match" a sampled row draws from the drafter's own filtered scores
with the noise that the target will use at that position, addressed by the target's ids, so that where the two agree on
the scores they agree on the token. Under "rejection" it draws with noise of its own (stream DRAFT), and the scores it
drew from are kept for the verification. Penalties, biases and grammars are left to the target.
Invariant: what is kept of a draft are the very scores that it was drawn from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.speculation import Draft, DraftShare
from engine.spec.draft_vocab import DraftVocab
from kernels.noise import Stream
from kernels.ops import Ops

PASSED_OVER = (0, 0, 0, (1 << 64) - 1)  # the address of a row that is not drawn: its stream is -1
UNFILTERED = (0.0, 0.0, 1.0, 0.0)  # the settings of a row that the op leaves alone
LEAST_CONFIDENCE = 1e-6


class DraftSampler:
    """Of one drafter. `chosen` int64 [passes, rows]: the target's ids; `ids`: the drafter's, the same where they
    are."""

    def __init__(self, ops: Ops, vocab: DraftVocab, size: tuple[int, int], kept_rows: int, dtype: torch.dtype) -> None:
        """size: passes, and rows of the largest of them, padded. kept_rows: tokens of a turn whose scores can be kept.
        dtype: of scores."""
        (passes, rows), device = size, vocab.to_target.device
        self._ops, self.vocab = ops, vocab
        self._kept_rows, self._dtype, self._device = kept_rows, dtype, device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.ids = zeros(passes, rows)
        self.chosen = self.ids if vocab.identity else zeros(passes, rows)
        self._confidence = zeros(passes, rows, dtype=dtype)
        self._peaks = zeros(rows, dtype=dtype)
        self._top = zeros(rows, 0, dtype=dtype), zeros(rows, 0)
        self._shape = size
        self._table = vocab.to_target.unsqueeze(1).view(torch.float32)  # rows of 8 bytes, whatever they mean
        self._buffers: tuple[Tensor, Tensor] | None = None  # filtered scores, and the same at the target's ids
        self._kept: Tensor | None = None
        self._first_kept: dict[str, tuple[int, int]] = {}  # of a request: the first row, and how many
        self._noisy: list[int] = []  # rows of this turn that are sampled
        self._keeping: dict[int, int] = {}  # row -> where its first token's scores go

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers that are there."""
        tensors = [self.ids, self.chosen, self._confidence, self._peaks, *(self._buffers or ())]
        tensors += [] if self._kept is None else [self._kept]
        own: int = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
        return own + self.vocab.nbytes

    def begin(self, shares: Sequence[DraftShare], counts: Sequence[int]) -> list[int]:
        """A turn: row i drafts for shares[i], counts[i] tokens. Returns the counts, shorter where nothing is left to
        keep scores in."""
        self._first_kept, self._keeping = {}, {}
        self._noisy = [row for row, share in enumerate(shares) if not share.sampling.greedy]
        allowed = [min(count, self._shape[0]) for count in counts]
        if not self._noisy:
            return allowed
        settings, used = [UNFILTERED] * self._shape[1], 0
        for row in self._noisy:
            sampling, share = shares[row].sampling, shares[row]
            settings[row] = (sampling.temperature, float(sampling.top_k), sampling.top_p, sampling.min_p)
            if share.rule == "rejection":
                allowed[row] = min(allowed[row], self._kept_rows - used)
                self._keeping[row], self._first_kept[share.request_id] = used, (used, allowed[row])
                used += allowed[row]
        self._settings = torch.tensor(settings, dtype=torch.float64, device=self._device)
        self._addresses = self._noise_of(shares, max(allowed, default=0))
        noisy = torch.zeros(self._shape[1], dtype=torch.bool)
        noisy[self._noisy] = True
        self._is_noisy = noisy.to(self._device)
        self._allowed = allowed
        return allowed

    def choose(self, index: int, rows: int, logits: Tensor) -> None:
        """The likeliest tokens of pass `index`, for logits [rows, V of the drafter]: ops alone, to be recorded."""
        vocab, ids = self.vocab, self.ids[index, :rows]
        if vocab.mask is not None:
            self._ops.add(logits, vocab.mask[:rows])
        self._ops.peaks(self._peaks[:rows], ids, logits)
        top, top_ids = self._top
        self._ops.log_probabilities(self._confidence[index, :rows], top[:rows], top_ids[:rows], logits, ids)
        if not vocab.identity:
            out = self.chosen[index, :rows].unsqueeze(1).view(torch.float32)
            self._ops.gather_rows(out, self._table, ids)

    def draw(self, index: int, rows: int, logits: Tensor) -> None:
        """Draws the sampled rows of the pass in place of what `choose` took."""
        noisy = [row for row in self._noisy if row < rows]
        if not noisy:
            return
        ops, vocab = self._ops, self.vocab
        filtered, spread = (buffer[:rows] for buffer in self._scores())
        ops.filter_scores(filtered, logits, self._settings[:rows])
        if not vocab.identity:
            spread.index_copy_(1, vocab.targets, filtered if vocab.mask is None else filtered[:, vocab.columns])
        ops.draw(self.chosen[index, :rows], spread, self._addresses[index, :rows])
        if vocab.inputs is not None:
            drawn = vocab.inputs[self.chosen[index, :rows]]
            self.ids[index, :rows] = torch.where(self._is_noisy[:rows], drawn, self.ids[index, :rows])
        wishes = torch.where(self._is_noisy[:rows], self.chosen[index, :rows], -1)
        top, top_ids = self._top
        ops.log_probabilities(self._confidence[index, :rows], top[:rows], top_ids[:rows], spread, wishes)
        for row in noisy:
            if row in self._keeping and index < self._allowed[row]:
                self._keep(self._keeping[row] + index, spread[row])

    def drafts(self, counts: Sequence[int], name: str) -> list[Draft]:
        """What was chosen, row by row. Waits for the device."""
        most, rows = max(counts, default=0), len(counts)
        if most == 0:
            return [Draft(proposer=name)] * rows
        ids = self.chosen[:most, :rows].t().tolist()
        chances = self._confidence[:most, :rows].t().tolist()
        return [
            Draft(tuple(ids[row][:count]), tuple(_confidence(value) for value in chances[row][:count]), name)
            for row, count in enumerate(counts)
        ]

    def scores(self, request_id: str, count: int) -> Tensor | None:
        """What the first `count` tokens of a request's draft of this turn were drawn from, [count, V of the target];
        None where they were not sampled under the rule "rejection"."""
        first, kept = self._first_kept.get(request_id, (0, 0))
        return None if self._kept is None or not 0 < count <= kept else self._kept[first : first + count]

    def _scores(self) -> tuple[Tensor, Tensor]:
        """The filtered scores, and those at the target's ids: the same ones where ids are."""
        if self._buffers is None:
            rows, size = self._shape[1], self.vocab.size
            filtered = torch.full((rows, size), -math.inf, dtype=self._dtype, device=self._device)
            spread = filtered
            if not self.vocab.identity:
                width = self.vocab.target_size
                spread = torch.full((rows, width), -math.inf, dtype=self._dtype, device=self._device)
            self._buffers = filtered, spread
        return self._buffers

    def _keep(self, row: int, scores: Tensor) -> None:
        if self._kept is None:
            shape = (self._kept_rows, self.vocab.target_size)
            self._kept = torch.full(shape, -math.inf, dtype=self._dtype, device=self._device)
        width = min(len(scores), self.vocab.target_size)
        self._kept[row, :width] = scores[:width]

    def _noise_of(self, shares: Sequence[DraftShare], passes: int) -> Tensor:
        """Addresses int64 [passes, rows, 4]: draft i of a row stands i tokens behind the last one."""
        numbers, rows = array("Q"), self._shape[1]
        noisy = set(self._noisy)
        for index in range(passes):
            for row in range(rows):
                if row not in noisy:
                    numbers.extend(PASSED_OVER)
                    continue
                share = shares[row]
                stream = Stream.DRAFT if share.rule == "rejection" else Stream.TARGET
                position = share.num_computed_tokens + len(share.token_ids) + index
                numbers.extend((share.seed, position, share.sample_index, int(stream)))
        return torch.frombuffer(numbers, dtype=torch.int64).view(passes, rows, 4).to(self._device)


def _confidence(logprob: float) -> float:
    chance = math.exp(logprob) if logprob == logprob else 0.0
    return min(max(chance, LEAST_CONFIDENCE), 1 - LEAST_CONFIDENCE)
