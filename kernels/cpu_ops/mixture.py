"""`kernels.ops.MixtureMlp` by the products and the activation in C++."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.activation import silu_mul
from kernels.cpu_ops.linear import linear, row_alignment
from kernels.reference.mixture import mix_experts


def mixture_mlp(
    out: Tensor, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int, normalise: bool
) -> None:
    """See `kernels.ops.MixtureMlp`."""
    mix_experts(linear, silu_mul, row_alignment(x.dtype, x.device), out, x, (router, gate_up, down), top_k, normalise)
