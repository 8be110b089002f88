"""`kernels.ops.SiluMul` and `GeluMul` in C++."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, pointer

_silu_mul = by_dtype("pz_silu_mul", 2, 2)
_gelu_mul = by_dtype("pz_gelu_mul", 2, 2)


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `kernels.ops.SiluMul`."""
    dtype = gate_up.dtype
    _silu_mul[dtype](pointer(out, dtype), pointer(gate_up, dtype), *out.shape)


def gelu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `kernels.ops.GeluMul`."""
    dtype = gate_up.dtype
    _gelu_mul[dtype](pointer(out, dtype), pointer(gate_up, dtype), *out.shape)
