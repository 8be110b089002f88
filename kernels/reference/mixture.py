"""A mixture of gated experts, composed of other ops; any backend's `linear` and `silu_mul` will do.

A row's outputs are added in the order of its own choice of experts, so they do not depend on the rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import Linear, SiluMul, accumulation_dtype
from kernels.reference.activation import silu_mul
from kernels.reference.linear import linear, row_alignment


def mixture_mlp(
    out: Tensor, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int, normalise: bool
) -> None:
    """See `kernels.ops.MixtureMlp`."""
    mix_experts(linear, silu_mul, row_alignment(x.dtype, x.device), out, x, (router, gate_up, down), top_k, normalise)


def mix_experts(
    linear: Linear,
    silu_mul: SiluMul,
    alignment: int,
    out: Tensor,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    top_k: int,
    normalise: bool,
) -> None:
    """`kernels.ops.MixtureMlp` by the given ops; `linear` wants rows in multiples of `alignment`."""
    router, gate_up, down = weights
    wide = accumulation_dtype(x.dtype)
    scores = _times(linear, alignment, x, router, wide)
    probabilities, experts = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    probabilities, experts = probabilities[:, :top_k], experts[:, :top_k]
    if normalise:
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    results = x.new_empty(x.shape[0], top_k, x.shape[1], dtype=wide)
    for expert in sorted(set(experts.flatten().tolist())):
        rows, choices = torch.where(experts == expert)
        hidden = _times(linear, alignment, x[rows], gate_up[expert], x.dtype)
        inner = hidden.new_empty(hidden.shape[0], hidden.shape[1] // 2)
        silu_mul(inner, hidden)
        results[rows, choices] = _times(linear, alignment, inner, down[expert], x.dtype).to(wide)
    total = results[:, 0] * probabilities[:, :1]
    for choice in range(1, top_k):
        total += results[:, choice] * probabilities[:, choice : choice + 1]
    out.copy_(total)


def _times(linear: Linear, alignment: int, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """x @ weight^T as `dtype`, by rows padded to a multiple of `alignment`."""
    rows = x.shape[0]
    padded = x.new_zeros(-(-rows // alignment) * alignment, x.shape[1])
    padded[:rows] = x
    out = x.new_empty(padded.shape[0], weight.shape[0], dtype=dtype)
    linear(out, padded, weight, None)
    return out[:rows]
