"""Watches the chain of one draw: what each of its steps removed and changed.

The steps are the very ones that every draw takes (`processors.ADJUSTMENTS`, `filters.filter_rows`), called one after
the other on a copy of the row's logits, with the scores compared in between. The filters are one call in a draw; here
they are called with the first of them, the first two and so on, which is the same chain cut after each. Called for
requests that ask for it and for no other. Invariant: the scores behind the last step are the bits that the draw used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.core.inspection import ChainStage, Inspection, InspectionWish, MovedToken
from engine.core.sampling_params import SamplingParams
from engine.sample.filters import filter_rows
from engine.sample.processors import ADJUSTMENTS
from engine.sample.row import SamplingRow
from kernels.ops import Ops

Asked = Callable[[SamplingRow], bool]

# of each adjustment its name, and whether a row asks for it
ADJUSTMENT_NAMES: dict[str, tuple[str, Asked]] = {
    "add_bias": ("logit_bias", lambda row: bool(row.sampling.logit_bias)),
    "forbid_bad_words": ("bad_words", lambda row: bool(row.sampling.bad_words)),
    "penalise_repetition": ("repetition_penalty", lambda row: row.sampling.repetition_penalty != 1.0),
    "penalise_presence_and_frequency": (
        "presence_frequency",
        lambda row: row.sampling.presence_penalty != 0.0 or row.sampling.frequency_penalty != 0.0,
    ),
    "penalise_continuations": ("dry", lambda row: row.sampling.dry_multiplier != 0.0),
    "apply_grammar": ("grammar", lambda row: bool(row.allowed)),
    "keep_allowed": ("allowed_token_ids", lambda row: bool(row.sampling.allowed_token_ids)),
    "hold_back_ends": ("min_tokens", lambda row: row.sampling.min_tokens > 0),
}
# of each filter, in its order, what switches it off
FILTERS_OFF: dict[str, Any] = {
    "top_k": 0,
    "top_p": 1.0,
    "typical_p": 1.0,
    "min_p": 0.0,
    "xtc_probability": 0.0,
}
FILTER_NAMES = {"xtc_probability": "xtc"}


def inspect_row(logits: Tensor, row: SamplingRow, wish: InspectionWish, drawn: int, ops: Ops) -> Inspection:
    """The chain over one row of logits [V], which are not written to. drawn: the token that came of it."""
    followed = drawn if wish.token_id is None else wish.token_id
    own = torch.log_softmax(logits.double(), 0)
    top = torch.sort(logits, descending=True, stable=True).indices[: min(wish.top, len(logits))]
    stages: list[ChainStage] = []
    before = logits
    for name, asked, after in _steps(logits, row, drawn, ops):
        stages.append(_stage(name, asked, before, after, followed, wish.top))
        before = after
    final = torch.log_softmax(before.double(), 0)
    listed: list[int] = top.tolist()
    return Inspection(
        token_id=followed,
        drawn_token_id=drawn,
        logprob=float(own[followed]),
        rank=_rank(logits, followed),
        entropy=_entropy(own),
        final_entropy=_entropy(final),
        top_token_ids=listed,
        top_logprobs=own[top].tolist(),
        top_final_logprobs=[_finite(value) for value in final[top].tolist()],
        stages=stages,
    )


def _steps(logits: Tensor, row: SamplingRow, drawn: int, ops: Ops) -> Iterator[tuple[str, bool, Tensor]]:
    """Each step of the chain: its name, whether it is asked for, and the scores behind it, in memory of their own."""
    scores = logits.clone()
    for processor in ADJUSTMENTS:
        processor(scores.unsqueeze(0), {0: row})
        name, asked = ADJUSTMENT_NAMES[processor.__name__]
        yield name, asked(row), scores.clone()
    if row.sampling.greedy:
        best = torch.full_like(scores, -math.inf)
        best[drawn] = scores[drawn]
        yield "temperature", True, best
        return
    for name, asked_for, part in _growing(row.sampling):
        out = torch.empty_like(scores)
        filter_rows(out.unsqueeze(0), scores.unsqueeze(0), {0: replace(row, sampling=part)}, ops)
        yield name, asked_for, out


def _growing(sampling: SamplingParams) -> Iterator[tuple[str, bool, SamplingParams]]:
    """The temperature alone, then with the first filter, the first two, and so on to what the request asks for."""
    part = replace(sampling, **FILTERS_OFF)
    yield "temperature", sampling.temperature != 1.0, part
    for field, off in FILTERS_OFF.items():
        value = getattr(sampling, field)
        part = replace(part, **{field: value})
        yield FILTER_NAMES.get(field, field), value != off, part


def _stage(name: str, asked: bool, before: Tensor, after: Tensor, followed: int, top: int) -> ChainStage:
    """What a step did. Where all scores were divided, each of them counts as changed."""
    could, can = before > -math.inf, after > -math.inf
    removed, changed = could & ~can, can & (before != after)
    moved = removed | changed
    num_left, num_moved = int(can.sum()), int(moved.sum())
    logprobs = torch.log_softmax(before.double(), 0)
    now = torch.log_softmax(after.double(), 0) if num_left else None
    listed: list[int] = []
    if num_moved:
        likely = logprobs.masked_fill(~moved, -math.inf)
        order = torch.sort(likely, descending=True, stable=True).indices
        listed = order[: min(top, num_moved)].tolist()
    follows = now is not None and bool(can[followed])
    return ChainStage(
        name=name,
        asked=asked,
        num_left=num_left,
        num_removed=int(removed.sum()),
        num_changed=int(changed.sum()),
        removed_probability=float(logprobs[removed].exp().sum()),
        moved=[
            MovedToken(token, float(logprobs[token]), None if now is None else _finite(float(now[token])))
            for token in listed
        ],
        logprob=float(now[followed]) if now is not None and follows else None,
        rank=_rank(after, followed) if follows else None,
    )


def _rank(scores: Tensor, token_id: int) -> int:
    """1 for the largest; ties go to the lowest id."""
    own = scores[token_id]
    return 1 + int((scores > own).sum()) + int((scores[:token_id] == own).sum())


def _entropy(logprobs: Tensor) -> float:
    """In nats."""
    finite = logprobs[logprobs > -math.inf]
    return float(-(finite.exp() * finite).sum())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
