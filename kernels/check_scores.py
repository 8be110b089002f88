"""As `kernels.check_cases`, for the ops on scores: peaks, filters, log probabilities, the draw, verification.

Scores are fp32 whatever a model's dtype is. Where an op gives ids they lie so far apart that rounding changes none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.check_cases import ROWS, Side, span
from kernels.ops import Ops

VOCABULARY = 203
NUM_TOP = 5
PASSED_OVER, UNTOUCHED = [3, 4, 10], -5.0  # rows of which an op must leave the outputs as they are, and what these hold
_FILTERS = (  # temperature (0: passed over), top_k, top_p, min_p
    (1.0, 0, 1.0, 0.0),
    (0.7, 20, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.05),
    (0.0, 9, 0.5, 0.1),
    (0.9, 40, 0.9, 0.02),
)


def _scores(side: Side) -> Tensor:
    """[ROWS, V], every second row with nine tokens of ten out."""
    scores = 3 * torch.randn(ROWS, VOCABULARY, generator=side.generator)
    out = torch.rand(ROWS, VOCABULARY, generator=side.generator) < 0.9
    scores[1::2] = scores[1::2].masked_fill(out[1::2], -torch.inf)
    return side.wide(scores)


def _addresses(side: Side) -> Tensor:
    """[ROWS, 4]: seeds of either sign that need all their bits."""
    return side.placed([[(-1) ** row * (row << 40), 1000 + row, row % 3, row % 2] for row in range(ROWS)])


def peaks(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """With ties and several NaN in a row: the first of them counts."""
    scores = _scores(side)
    scores[2, 17], scores[5, 9], scores[5, 150] = scores[2].amax(), torch.nan, torch.nan
    values, ids = side.empty(span(rows), dtype=scores.dtype), side.empty(span(rows), dtype=torch.int64)
    ops.peaks(values, ids, scores[rows].clone())
    return values.isnan(), values.nan_to_num(), ids


def filter_scores(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Each filter by itself, all of them, and rows to pass over."""
    settings = side.placed([_FILTERS[row % len(_FILTERS)] for row in range(ROWS)], torch.float64)
    scores = _scores(side)
    out = side.empty(span(rows), VOCABULARY, dtype=scores.dtype).fill_(UNTOUCHED)
    ops.filter_scores(out, scores[rows].clone(), settings[rows].clone())
    return out.isneginf(), out.masked_fill(out.isneginf(), 0.0)


def log_probabilities(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Of the likeliest token, and of none in the rows to pass over."""
    scores = _scores(side)
    ids = scores.argmax(1)
    ids[PASSED_OVER] = -1
    out = side.empty(span(rows), dtype=scores.dtype).fill_(UNTOUCHED)
    top_values = side.empty(span(rows), NUM_TOP, dtype=scores.dtype).fill_(UNTOUCHED)
    top_ids = side.empty(span(rows), NUM_TOP, dtype=torch.int64)
    ops.log_probabilities(out, top_values, top_ids, scores[rows].clone(), ids[rows].clone())
    return out, top_values, top_ids


def draw(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Seeds of both signs; a stream below 0 passes a row over."""
    addresses, out = _addresses(side), side.empty(span(rows), dtype=torch.int64)
    addresses[PASSED_OVER, 3] = -1
    ops.draw(out, _scores(side)[rows].clone(), addresses[rows].clone())
    return (out,)


REQUESTS = (slice(0, 1), slice(1, 7), slice(7, 7), slice(7, ROWS))  # without drafts, with five, padding, the rest


def _starts(rows: slice) -> list[int]:
    """Where the requests among `rows` begin, and the end: all of them, or one."""
    ends = [0] + [request.stop - rows.start for request in REQUESTS if rows.start < request.stop <= rows.stop]
    return ends if span(rows) < ROWS else [0, *(request.stop for request in REQUESTS)]


def _of_each_row(accepted: Tensor, starts: list[int]) -> Tensor:
    """The count of its request beside every row; a count of the padding request shows in all."""
    lengths = torch.tensor(starts).diff()
    padding = accepted[lengths.to(accepted.device) == 0].sum()
    return accepted.repeat_interleave(lengths.to(accepted.device)) + padding


def _without_last(drafts: Tensor) -> Tensor:
    """A request's last row has no draft."""
    drafts[[request.stop - 1 for request in REQUESTS]] = -1
    return drafts


def verify_match(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Drafts of which about four in five are right."""
    drawn = side.integers(VOCABULARY, ROWS)
    wrong = (torch.rand(ROWS, generator=side.generator) < 0.2).to(side.device)
    drafts, starts = _without_last(drawn.where(~wrong, drawn + 1)), _starts(rows)
    out = side.empty(span(rows), dtype=torch.int64)
    accepted = side.empty(len(starts) - 1, dtype=torch.int32)
    given = side.placed(starts, torch.int32)
    ops.verify_match(out, accepted, drawn[rows].clone(), drafts[rows].clone(), given)
    return out, _of_each_row(accepted, starts)


def verify_rejection(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Drafts that are likely under scores near the target's."""
    target = 2 * torch.randn(ROWS, VOCABULARY, generator=side.generator)
    near = target + 0.5 * torch.randn(ROWS, VOCABULARY, generator=side.generator)
    drafts, starts = _without_last(near.argmax(1).to(side.device)), _starts(rows)
    out = side.empty(span(rows), dtype=torch.int64)
    accepted = side.empty(len(starts) - 1, dtype=torch.int32)
    parts = (side.wide(target), side.wide(near), drafts, _addresses(side))
    scores, draft_scores, drafts, addresses = (part[rows].clone() for part in parts)
    given = side.placed(starts, torch.int32)
    ops.verify_rejection(out, accepted, scores, draft_scores, drafts, given, addresses)
    return out, _of_each_row(accepted, starts)
