"""Attention of an unrolled drafter: what was known before, and what the drafter itself made since.

Owns the arithmetic of EAGLE-3's training-time test (Li et al., arXiv 2503.01840): in step s the query of base position
i sees the true keys up to i and one key of each step 1 to s, the drafter's own at the same base position. Knows no
weights. Invariant: both ways to compute it give the same (a test holds them together); the fast one is the CPU's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def unrolled_attention(q: Tensor, k: Tensor, v: Tensor, own_k: Sequence[Tensor], own_v: Sequence[Tensor]) -> Tensor:
    """q [B, A, L, D] of step s; k, v [B, G, L, D]: true ones; own_k, own_v: s of [B, G, L, D]. A is a multiple of G.

    Returns [B, A, L, D]. Scores are scaled by D ** -0.5.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if not own_k and q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    own = [torch.stack(list(part), dim=2).repeat_interleave(groups, dim=1) for part in (own_k, own_v) if part]
    diagonal_k, diagonal_v = own or (k[:, :, None, :, :][:, :, :0], v[:, :, None, :, :][:, :, :0])
    if q.device.type != "cpu":
        return _explicit(q, k, v, diagonal_k, diagonal_v)
    merged: Tensor = _Merged.apply(q, k, v, diagonal_k, diagonal_v)  # type: ignore[no-untyped-call]
    return merged


def _explicit(q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
    """The whole matrix of scores. own_k, own_v [B, A, s, L, D]."""
    length, scale = q.shape[2], q.shape[3] ** -0.5
    scores = (q @ k.transpose(-1, -2)).float() * scale
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, -math.inf)
    diagonal = (q[:, :, None] * own_k).float().sum(-1).transpose(2, 3) * scale  # [B, A, L, s]
    shares = torch.cat((scores, diagonal), dim=-1).softmax(dim=-1).to(q.dtype)
    own = (shares[..., length:].transpose(2, 3)[..., None] * own_v).sum(2)
    return shares[..., :length] @ v + own


class _Merged(torch.autograd.Function):
    """Flash attention over the true keys, joined with the few own ones by their log-sums.

    The backward of flash attention needs only the final output and the log-sum over all keys to give the true keys'
    part: both are those of the joined softmax.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
        scale = q.shape[3] ** -0.5
        out, log_sum = _flash(q, k, v, 0.0, True)
        shares = q.new_zeros(*q.shape[:2], 0, q.shape[2])
        if own_k.shape[2]:
            scores = (q[:, :, None] * own_k).sum(-1, dtype=torch.float32) * scale  # [B, A, s, L]
            joined = torch.logaddexp(log_sum, scores.logsumexp(2))
            shares = (scores - joined[:, :, None]).exp()
            kept = (log_sum - joined).exp()[..., None].to(q.dtype)
            out = out * kept + (shares[..., None].to(q.dtype) * own_v).sum(2)
            log_sum = joined
        ctx.save_for_backward(q, k, v, own_k, own_v, out, log_sum, shares)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, own_k, own_v, out, log_sum, shares = ctx.saved_tensors
        grad = grads[0].contiguous()
        scale = q.shape[3] ** -0.5
        grad_q, grad_k, grad_v = _flash_backward(grad, q, k, v, out, log_sum, 0.0, True)
        if not own_k.shape[2]:
            return grad_q, grad_k, grad_v, None, None
        through = (grad * out).sum(-1, dtype=torch.float32)[:, :, None]
        of_shares = (grad[:, :, None] * own_v).sum(-1, dtype=torch.float32)
        of_scores = (shares * (of_shares - through) * scale).to(q.dtype)[..., None]
        grad_q = grad_q + (of_scores * own_k).sum(2)
        grad_own_v = shares[..., None].to(q.dtype) * grad[:, :, None]
        return grad_q, grad_k, grad_v, of_scores * q[:, :, None], grad_own_v
