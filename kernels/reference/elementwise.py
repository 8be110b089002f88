"""Sums, products and caps of single elements in plain torch."""

from __future__ import annotations

from torch import Tensor

from kernels.ops import accumulation_dtype


def add(residual: Tensor, x: Tensor) -> None:
    """See `kernels.ops.Add`."""
    residual.add_(x)


def scale(x: Tensor, factor: float) -> None:
    """See `kernels.ops.Scale`."""
    x.mul_(factor)


def soft_cap(x: Tensor, cap: float) -> None:
    """See `kernels.ops.SoftCap`."""
    x.copy_(x.to(accumulation_dtype(x.dtype)).div(cap).tanh_().mul_(cap))
