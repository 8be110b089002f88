"""`kernels.ops.MixtureMlp` by the products and the activation in Triton.

The choice of experts is read on the host, so a step with a mixture in it cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from torch import Tensor

from kernels.reference.mixture import ExpertOps, Matrices, mix_experts
from kernels.triton_ops.activation import silu_mul
from kernels.triton_ops.group_linear import group_linear
from kernels.triton_ops.linear import linear, row_alignment


def mixture_mlp(
    out: Tensor, x: Tensor, router: Tensor, gate_up: Matrices, down: Matrices, top_k: int, normalise: bool
) -> None:
    """See `kernels.ops.MixtureMlp`."""
    ops = ExpertOps(linear, group_linear, silu_mul, row_alignment(x.dtype, x.device))
    mix_experts(ops, out, x, router, gate_up, down, top_k, normalise)
