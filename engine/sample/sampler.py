"""Draws one token per row of logits.

Greedy rows take the largest logit. Others take the largest of logit / temperature + Gumbel noise among the survivors of
the processor chain, which is an exact draw from their softmax (the Gumbel-max trick). Ties go to the lowest id.
Invariant: a row's token depends on its logits, its parameters, its seed and its position, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.sample.noise import Stream, gumbel, gumbel_vocabulary
from engine.sample.processors import keep_threshold


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one row is drawn. position: where the drawn token will stand in its sequence."""

    sampling: SamplingParams
    seed: int
    position: int
    sample_index: int = 0


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token id per row. logits: fp32 or fp64 [len(rows) or more, V]; rows past len(rows) are padding.

    Raises FloatingPointError naming the row when logits are not finite.
    """
    top = logits[: len(rows)].max(dim=-1)
    peaks: list[float] = top.values.tolist()
    for row, peak in enumerate(peaks):
        if not math.isfinite(peak):
            raise FloatingPointError(f"row {row}: the largest logit is {peak}")
    chosen: list[int] = top.indices.tolist()
    for row, wish in enumerate(rows):
        if not wish.sampling.greedy:
            chosen[row] = _draw(logits[row], wish)
    return chosen


def _draw(logits: Tensor, row: SamplingRow) -> int:
    """One token id from one row of logits [V]."""
    scaled = logits / row.sampling.temperature
    threshold = keep_threshold(scaled, row.sampling)
    at = (row.seed, row.position, row.sample_index, Stream.TARGET)
    if threshold == -math.inf:
        return int(torch.argmax(scaled.double() + gumbel_vocabulary(len(scaled), *at, scaled.device)))
    survivors = (scaled >= threshold).nonzero().squeeze(-1)
    return int(survivors[torch.argmax(scaled[survivors].double() + gumbel(survivors, *at))])
