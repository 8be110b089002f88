"""A mixture of gated experts, composed of other ops; any backend's `linear` and `silu_mul` will do.

A row's outputs are added in the order of its own choice of experts, so they do not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.group_quant import GroupQuant
from kernels.ops import GroupLinear, Linear, SiluMul, accumulation_dtype
from kernels.reference.activation import silu_mul
from kernels.reference.group_linear import group_linear
from kernels.reference.linear import linear, row_alignment

Matrices: TypeAlias = Sequence[Tensor | GroupQuant]


@dataclass(frozen=True, slots=True)
class ExpertOps:
    """What a mixture is composed of. row_alignment: of the rows that `linear` and `group_linear` get."""

    linear: Linear
    group_linear: GroupLinear
    silu_mul: SiluMul
    row_alignment: int

    def times(self, x: Tensor, weight: Tensor | GroupQuant, dtype: torch.dtype) -> Tensor:
        """x @ weight^T as `dtype`, by rows padded to a multiple of `row_alignment`."""
        rows, alignment = x.shape[0], self.row_alignment
        padded = x.new_zeros(-(-rows // alignment) * alignment, x.shape[1])
        padded[:rows] = x
        out = x.new_empty(padded.shape[0], weight.shape[0], dtype=dtype)
        if isinstance(weight, GroupQuant):
            self.group_linear(out, padded, weight, None)
        else:
            self.linear(out, padded, weight, None)
        return out[:rows]


def mixture_mlp(
    out: Tensor, x: Tensor, router: Tensor, gate_up: Matrices, down: Matrices, top_k: int, normalise: bool
) -> None:
    """See `kernels.ops.MixtureMlp`."""
    ops = ExpertOps(linear, group_linear, silu_mul, row_alignment(x.dtype, x.device))
    mix_experts(ops, out, x, router, gate_up, down, top_k, normalise)


def mix_experts(
    ops: ExpertOps,
    out: Tensor,
    x: Tensor,
    router: Tensor,
    gate_up: Matrices,
    down: Matrices,
    top_k: int,
    normalise: bool,
) -> None:
    """`kernels.ops.MixtureMlp` by the given ops."""
    wide = accumulation_dtype(x.dtype)
    scores = ops.times(x, router, wide)
    probabilities, experts = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    probabilities, experts = probabilities[:, :top_k], experts[:, :top_k]
    if normalise:
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    results = x.new_empty(x.shape[0], top_k, x.shape[1], dtype=wide)
    for expert in sorted(set(experts.flatten().tolist())):
        rows, choices = torch.where(experts == expert)
        hidden = ops.times(x[rows], gate_up[expert], x.dtype)
        inner = hidden.new_empty(hidden.shape[0], hidden.shape[1] // 2)
        ops.silu_mul(inner, hidden)
        results[rows, choices] = ops.times(inner, down[expert], x.dtype).to(wide)
    total = results[:, 0] * probabilities[:, :1]
    for choice in range(1, top_k):
        total += results[:, choice] * probabilities[:, choice : choice + 1]
    out.copy_(total)
