"""`kernels.ops.RmsNorm` and `AddRmsNorm` in C++."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, pointer

_add_norm = by_dtype("pz_add_norm", 4, 2, 1)


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """See `kernels.ops.RmsNorm`."""
    dtype = x.dtype
    _add_norm[dtype](pointer(out, dtype), pointer(x, dtype), None, pointer(weight, dtype), *x.shape, eps)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """See `kernels.ops.AddRmsNorm`."""
    dtype = x.dtype
    tensors = (pointer(residual, dtype), pointer(x, dtype), pointer(weight, dtype))
    _add_norm[dtype](pointer(out, dtype), *tensors, *x.shape, eps)
