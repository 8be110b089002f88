"""Perplexity of rows of text, from the residuals behind the last layer.

Owns the sum over tokens. Knows neither layers nor files. Invariant: every position but a row's last predicts the token
behind it, and each counts once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.config import ModelConfig
from engine.train.forward import logits

_LOGITS_AT_ONCE = 1 << 26


def log_perplexity(x: Tensor, token_ids: Tensor, norm: Tensor, head: Tensor, config: ModelConfig) -> float:
    """Mean negative log probability in nats. x fp32 [R, L, H]; token_ids int64 [R, L]; norm [H]; head fp32 [V, H]."""
    states, targets = x[:, :-1].flatten(0, 1), token_ids[:, 1:].flatten()
    step = max(1, _LOGITS_AT_ONCE // head.shape[0])
    total = 0.0
    for part, wanted in zip(torch.split(states, step), torch.split(targets, step), strict=True):
        total += float(F.cross_entropy(logits(part, norm, head, config), wanted, reduction="sum"))
    return total / len(targets)


def recovered(base: float, rounded: float, found: float) -> float | None:
    """The share of the log-perplexity lost by rounding that `found` does not lose; None where none was lost."""
    return 1 - (found - base) / (rounded - base) if rounded > base else None


def largest(tensors: list[Tensor]) -> float:
    """The largest absolute value."""
    return max(float(torch.linalg.vector_norm(tensor, torch.inf)) for tensor in tensors)
