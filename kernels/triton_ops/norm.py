"""RMS norms in Triton: a program a row, or a group of its columns; sums in fp32."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes


@triton.jit
def _rms_norm(
    out: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    size: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The program's second index is the group of `size` columns; without groups there is one."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * size
    index = tl.arange(0, BLOCK)
    mask, column = index < size, first + index
    wide = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        target = residual + row * residual_stride + column
        total = wide + tl.load(target, mask=mask, other=0.0).to(tl.float32)
        rounded = total.to(residual.dtype.element_ty)
        tl.store(target, rounded, mask=mask)
        wide = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    scale = tl.load(weight + index, mask=mask, other=0.0).to(tl.float32) + offset
    tl.store(out + row * out_stride + column, (wide * inverse * scale).to(out.dtype.element_ty), mask=mask)


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.RmsNorm`."""
    _launch(out, x, None, weight, 1, eps, offset)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.AddRmsNorm`."""
    _launch(out, x, residual, weight, 1, eps, offset)


def group_rms_norm(x: Tensor, first: int, groups: int, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.GroupRmsNorm`."""
    columns = x[:, first : first + groups * weight.shape[0]]
    _launch(columns, columns, None, weight, groups, eps, offset)


def _launch(
    out: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, groups: int, eps: float, offset: float
) -> None:
    summed = x if residual is None else residual
    check_dtypes(out, x, summed, weight)
    size = weight.shape[0]
    block = triton.next_power_of_2(size)
    _rms_norm[x.shape[0], groups](
        out,
        x,
        summed,
        weight,
        size,
        out.stride(0),
        x.stride(0),
        summed.stride(0),
        eps,
        offset,
        ADDS=residual is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
    )
