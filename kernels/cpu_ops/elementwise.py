"""`kernels.ops.Add`, `Scale` and `SoftCap` in C++."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, pointer

_add = by_dtype("pz_add", 2, 2)
_scale = by_dtype("pz_scale", 1, 2, 1)
_soft_cap = by_dtype("pz_soft_cap", 1, 2, 1)


def add(residual: Tensor, x: Tensor) -> None:
    """See `kernels.ops.Add`."""
    dtype = x.dtype
    _add[dtype](pointer(residual, dtype), pointer(x, dtype), *x.shape)


def scale(x: Tensor, factor: float) -> None:
    """See `kernels.ops.Scale`."""
    _scale[x.dtype](pointer(x, x.dtype), *x.shape, factor)


def soft_cap(x: Tensor, cap: float) -> None:
    """See `kernels.ops.SoftCap`."""
    _soft_cap[x.dtype](pointer(x, x.dtype), *x.shape, cap)
