"""Cases of what is asked of scores beside the draw: peaks, filters, log probabilities.

Among the rows are some with ties, some of which most tokens are out, and some that the op is to pass over.
Numbers that may be -inf are compared with FLOOR in its place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.ops import Ops, accumulation_dtype
from tests.kernels.case import Case, CaseMaker, normal

FLOOR = -100.0
LEFT = 7.0  # stands where an op must not write
SETTINGS = (  # temperature, top_k, top_p, min_p
    (0.7, 0.0, 1.0, 0.0),
    (1.0, 20.0, 1.0, 0.0),
    (1.0, 0.0, 0.9, 0.0),
    (0.0, 3.0, 0.5, 0.1),
    (2.0, 0.0, 0.9, 0.0),
    (1.3, 40.0, 0.8, 0.0),
    (0.9, 0.0, 1.0, 0.05),
    (1.0, 100.0, 0.95, 0.02),
    (1.0, 0.0, 1.0, 0.0),
    (0.5, 900.0, 0.999, 0.0),
    (1.0, 1.0, 1e-9, 1.0),
)


def _scores(generator: torch.Generator, dtype: torch.dtype, rows: int, vocabulary: int) -> Tensor:
    scores = normal(generator, rows, vocabulary, dtype=accumulation_dtype(dtype)) * 3
    scores[1::3] = (scores[1::3] * 2).round() / 2
    scores[2::5].masked_fill_(torch.rand(len(scores[2::5]), vocabulary, generator=generator) < 0.98, -torch.inf)
    scores[:, vocabulary // 3] = 0.5  # is never out
    return scores


def _peaks(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    scores = _scores(generator, dtype, rows, 1003)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        values, ids = torch.empty(last - first, dtype=scores.dtype), torch.empty(last - first, dtype=torch.int64)
        ops.peaks(values, ids, scores[first:last])
        return torch.stack([values.double(), ids.double()], 1)

    values = scores.amax(1, keepdim=True)
    ids = torch.arange(1003, 0, -1).where(scores == values, 0).argmax(1)
    return Case(run, torch.stack([values.squeeze(1).double(), ids.double()], 1), rows)


def _filter_scores(vocabulary: int, *, in_place: bool = False, spread: float = 1.0) -> CaseMaker:
    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        logits = _scores(generator, dtype, rows, vocabulary) * spread
        settings = torch.tensor([SETTINGS[row % len(SETTINGS)] for row in range(rows)], dtype=torch.float64)
        passed_over = settings[:, 0] == 0

        def run(ops: Ops, first: int, last: int) -> Tensor:
            out = logits[first:last].clone() if in_place else torch.full_like(logits[first:last], LEFT)
            ops.filter_scores(out, out if in_place else logits[first:last], settings[first:last])
            return out.clamp(min=FLOOR)

        truth = torch.stack([_filtered(row, *of_row) for row, of_row in zip(logits, settings.tolist(), strict=True)])
        truth[passed_over] = logits[passed_over].double() if in_place else LEFT
        return Case(run, truth.clamp(min=FLOOR), rows)

    return make


def _filtered(logits: Tensor, temperature: float, top_k: float, top_p: float, min_p: float) -> Tensor:
    """The definition, by sorting: fp64 [V]."""
    scores = (logits / (temperature or 1.0)).double()
    order = torch.sort(scores, descending=True).values
    order = order[order > -math.inf]
    if 0 < top_k < len(order):
        order = order[order >= order[int(top_k) - 1]]
    if top_p < 1:
        before = torch.softmax(order, 0).cumsum(0).roll(1)
        before[0] = 0
        order = order[order >= order[before < top_p][-1]]
    if min_p > 0:
        order = order[(order - order[0]).float() >= math.log(min_p)]
    return scores.masked_fill(scores < order[-1], -math.inf)


def _log_probabilities(vocabulary: int, num_top: int) -> CaseMaker:
    """Every eleventh row is passed over."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        scores = _scores(generator, dtype, rows, vocabulary)
        token_ids = torch.randint(vocabulary, (rows,), generator=generator)
        token_ids[3::11] = -1

        def run(ops: Ops, first: int, last: int) -> Tensor:
            out = torch.full((last - first,), LEFT, dtype=scores.dtype)
            values = torch.full((last - first, num_top), LEFT, dtype=scores.dtype)
            ids = torch.full((last - first, num_top), int(LEFT), dtype=torch.int64)
            ops.log_probabilities(out, values, ids, scores[first:last], token_ids[first:last])
            return torch.cat([out.unsqueeze(1).double(), values.double(), ids.double()], 1).clamp(min=FLOOR)

        wide = torch.log_softmax(scores.double(), 1)
        own = wide.gather(1, token_ids.clamp(min=0).unsqueeze(1))
        order = torch.sort(wide, dim=1, descending=True, stable=True)
        values, ids = (
            order.values[:, :num_top],
            order.indices[:, :num_top].masked_fill(order.values[:, :num_top] == -math.inf, -1),
        )
        missing = num_top - values.shape[1]
        values = torch.nn.functional.pad(values, (0, missing), value=-math.inf)
        truth = torch.cat([own, values, torch.nn.functional.pad(ids, (0, missing), value=-1).double()], 1)
        truth[token_ids < 0] = LEFT
        return Case(run, truth.clamp(min=FLOOR), rows)

    return make


SAMPLING_CASES: dict[str, CaseMaker] = {
    "peaks": _peaks,
    "filter_scores": _filter_scores(1003),
    "filter_scores: in place": _filter_scores(3000, in_place=True),
    "filter_scores: nearly flat": _filter_scores(5000, spread=0.1),
    "log_probabilities": _log_probabilities(1003, 20),
    "log_probabilities: none beside": _log_probabilities(300, 0),
    "log_probabilities: all there are": _log_probabilities(40, 50),
}
