"""`Add`, `Scale` and `SoftCap` of `kernels.ops` in Triton: a program a part of a row, fp32 in between."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes

BLOCK = 1024  # elements of a program


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Near 0, where the exponential form would lose its digits to 1 - 1, by Lambert's continued fraction."""
    square = x * x
    small = x * (945.0 + square * (105.0 + square)) / (945.0 + square * (420.0 + square * 15.0))
    power = tl.exp2(tl.abs(x) * -2.885390081777927)  # e^(-2 |x|)
    large = (1.0 - power) / (1.0 + power)
    return tl.where(tl.abs(x) < 0.6, small, tl.where(x < 0, -large, large))


@triton.jit
def _add(
    residual: tl.tensor,
    x: tl.tensor,
    width: tl.tensor,
    residual_stride: tl.tensor,
    x_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    target = residual + row * residual_stride + column
    total = tl.load(target, mask=mask).to(tl.float32) + tl.load(x + row * x_stride + column, mask=mask).to(tl.float32)
    tl.store(target, total.to(residual.dtype.element_ty), mask=mask)


@triton.jit
def _scale(x: tl.tensor, factor: tl.tensor, width: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr) -> None:
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = x + tl.program_id(0).to(tl.int64) * stride + column
    product = tl.load(target, mask=column < width).to(tl.float32) * factor
    tl.store(target, product.to(x.dtype.element_ty), mask=column < width)


@triton.jit
def _soft_cap(x: tl.tensor, cap: tl.tensor, width: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr) -> None:
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = x + tl.program_id(0).to(tl.int64) * stride + column
    capped = cap * tanh(tl.load(target, mask=column < width, other=0.0).to(tl.float32) / cap)
    tl.store(target, capped.to(x.dtype.element_ty), mask=column < width)


def add(residual: Tensor, x: Tensor) -> None:
    """See `kernels.ops.Add`."""
    check_dtypes(residual, x)
    rows, width = residual.shape
    _add[rows, triton.cdiv(width, BLOCK)](residual, x, width, residual.stride(0), x.stride(0), BLOCK=BLOCK)


def scale(x: Tensor, factor: float) -> None:
    """See `kernels.ops.Scale`."""
    check_dtypes(x)
    rows, width = x.shape
    _scale[rows, triton.cdiv(width, BLOCK)](x, factor, width, x.stride(0), BLOCK=BLOCK)


def soft_cap(x: Tensor, cap: float) -> None:
    """See `kernels.ops.SoftCap`."""
    check_dtypes(x)
    rows, width = x.shape
    _soft_cap[rows, triton.cdiv(width, BLOCK)](x, cap, width, x.stride(0), BLOCK=BLOCK)
