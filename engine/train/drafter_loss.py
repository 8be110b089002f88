"""Cross-entropy against the target's whole distribution, over the drafter's reduced vocabulary.

Owns the loss and its gradient in one pass, since autograd would keep five matrices of positions times vocabulary.
Knows no drafter. Invariant: the gradient is that of the loss it returns (a test compares it with autograd's).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def soft_cross_entropy(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """sum over rows of weights * -(wanted . log_softmax(logits)); a scalar, fp32.

    logits [R, n] of any float dtype; wanted [R, n]: nonnegative, rows may sum to less than 1 (the target's mass outside
    the reduced vocabulary teaches nothing); weights fp32 [R].
    """
    loss: Tensor = _SoftCrossEntropy.apply(logits, wanted, weights)  # type: ignore[no-untyped-call]
    return loss


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
        scores = logits.float()
        log_sum = scores.logsumexp(-1)
        mass = wanted.sum(-1, dtype=torch.float32)
        inner = torch.einsum("rn,rn->r", wanted, scores.to(wanted.dtype)).float()
        loss = (weights * (mass * log_sum - inner)).sum()
        grad = scores.sub_(log_sum[:, None]).exp_().mul_(mass[:, None]).sub_(wanted).mul_(weights[:, None])
        ctx.save_for_backward(grad.to(logits.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None
