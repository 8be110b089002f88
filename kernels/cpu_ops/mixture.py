"""`kernels.ops.MixtureMlp` by the products and the activation in C++."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.activation import silu_mul
from kernels.cpu_ops.binding import leaves
from kernels.cpu_ops.group_linear import group_linear
from kernels.cpu_ops.linear import linear, row_alignment
from kernels.reference.mixture import ExpertOps, Matrices, mix_experts


def mixture_mlp(
    out: Tensor, x: Tensor, router: Tensor, gate_up: Matrices, down: Matrices, top_k: int, normalise: bool
) -> None:
    """See `kernels.ops.MixtureMlp`."""
    leaves("the choice of experts")
    ops = ExpertOps(linear, group_linear, silu_mul, row_alignment(x.dtype, x.device))
    mix_experts(ops, out, x, router, gate_up, down, top_k, normalise)
