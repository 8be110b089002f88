"""The linear op through torch's own matrix product, called only in shapes whose rows are independent.

Measured with torch 2.13 on CPUs: a product of 1 to 15 rows differs in bits from the same rows among 16 or more, and
beyond 16 it may change its kernel again with the number of rows (AMX and AVX-512 in bf16, AVX2 in fp64). So every
product here has exactly `ROW_ALIGNMENT` rows, except where torch computes bf16 row by row, for want of such hardware,
which is independent by itself. The engine still probes all of this on the machine at hand (engine/runner/exactness.py).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

ROW_ALIGNMENT = 16  # a BLAS then sees one and the same row tile always


@functools.cache
def native_bfloat16() -> bool:
    """Whether this CPU has bf16 products that oneDNN uses."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def row_by_row(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch computes each row of this product by itself."""
    return dtype == torch.bfloat16 and device.type == "cpu" and not native_bfloat16()


def row_alignment(dtype: torch.dtype, device: torch.device) -> int:
    """See `kernels.ops.Ops.row_alignment`."""
    return 1 if row_by_row(dtype, device) else ROW_ALIGNMENT


def linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """See `kernels.ops.Linear`."""
    rows, alignment = x.shape[0], row_alignment(x.dtype, x.device)
    if rows % alignment:
        raise ValueError(f"linear: {rows} rows; the caller pads them to a multiple of {alignment}")
    target = out if out.dtype == x.dtype else torch.empty_like(out, dtype=x.dtype)
    transposed = weight.t()
    step = rows if alignment == 1 else ROW_ALIGNMENT
    for start in range(0, rows, step):
        torch.mm(x[start : start + step], transposed, out=target[start : start + step])
    if bias is not None:
        target.add_(bias)
    if target is not out:
        out.copy_(target)
