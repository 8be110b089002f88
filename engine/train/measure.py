"""Perplexity of rows of text and distance between models, from the residuals behind the last layer.

Owns the sums over tokens. Knows neither layers nor files. Invariant: every position but a row's last predicts the token
behind it, and each counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.config import ModelConfig
from engine.train.forward import logits

_LOGITS_AT_ONCE = 1 << 23


@dataclass(frozen=True, slots=True)
class Side:
    """A model as far as it has come: x fp32 [R, L, H] behind the last layer, norm [H], head fp32 [V, H]."""

    x: Tensor
    norm: Tensor
    head: Tensor


@dataclass(frozen=True, slots=True)
class Figures:
    """log_perplexity: mean negative log probability in nats. divergence: mean Kullback-Leibler divergence of the
    predictions from those of the first side, in nats a token.
    """

    log_perplexity: float
    divergence: float


def compare(sides: Sequence[Side], token_ids: Tensor, config: ModelConfig) -> list[Figures]:
    """The figures of each side on token_ids int64 [R, L]; the first side is the one that divergence is from."""
    targets = token_ids[:, 1:].flatten()
    states = [side.x[:, :-1].flatten(0, 1) for side in sides]
    step = max(1, _LOGITS_AT_ONCE // sides[0].head.shape[0])
    sums = [[0.0, 0.0] for _ in sides]
    for first in range(0, len(targets), step):
        rows = slice(first, first + step)
        reference = torch.zeros(0)
        for side, x, total in zip(sides, states, sums, strict=True):
            chances = logits(x[rows], side.norm, side.head, config).log_softmax(-1)
            if not reference.numel():
                reference = chances
            total[0] += float(F.nll_loss(chances, targets[rows], reduction="sum"))
            total[1] += float(F.kl_div(chances, reference, reduction="sum", log_target=True))
    return [Figures(loss / len(targets), divergence / len(targets)) for loss, divergence in sums]


def recovered(base: float, rounded: float, found: float) -> float | None:
    """The share of what rounding adds to `base` that `found` does not add; None where rounding adds nothing."""
    return 1 - (found - base) / (rounded - base) if rounded > base else None


def largest(tensors: list[Tensor]) -> float:
    """The largest absolute value."""
    return max(float(torch.linalg.vector_norm(tensor, torch.inf)) for tensor in tensors)
