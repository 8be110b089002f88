"""`kernels.ops.RmsNorm`, `AddRmsNorm` and `GroupRmsNorm` in C++."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, pointer

_add_norm = by_dtype("pz_add_norm", 4, 2, 2)
_group_norm = by_dtype("pz_group_norm", 2, 5, 2)


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.RmsNorm`."""
    dtype = x.dtype
    _add_norm[dtype](pointer(out, dtype), pointer(x, dtype), None, pointer(weight, dtype), *x.shape, eps, offset)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.AddRmsNorm`."""
    dtype = x.dtype
    tensors = (pointer(residual, dtype), pointer(x, dtype), pointer(weight, dtype))
    _add_norm[dtype](pointer(out, dtype), *tensors, *x.shape, eps, offset)


def group_rms_norm(x: Tensor, first: int, groups: int, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.GroupRmsNorm`."""
    dtype = x.dtype
    _group_norm[dtype](pointer(x, dtype), pointer(weight, dtype), *x.shape, first, groups, weight.shape[0], eps, offset)
