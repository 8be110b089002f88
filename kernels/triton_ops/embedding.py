"""Rows picked and placed in Triton: `embedding`, `gather_rows` and `scatter_rows` of `kernels.ops`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_contiguous, check_dtypes

BLOCK = 1024  # elements of a program


@triton.jit
def _gather(
    out: tl.tensor,
    table: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    out_stride: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = table + tl.load(rows + row).to(tl.int64) * stride + column
    tl.store(out + row * out_stride + column, tl.load(source, mask=column < width), mask=column < width)


@triton.jit
def _scatter(
    out: tl.tensor,
    x: tl.tensor,
    rows: tl.tensor,
    first: tl.tensor,
    width: tl.tensor,
    out_stride: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(rows + row).to(tl.int64)
    mask = (column < width) & (target >= 0)
    tl.store(out + target * out_stride + first + column, tl.load(x + row * stride + column, mask=mask), mask=mask)


def embedding(out: Tensor, token_ids: Tensor, table: Tensor) -> None:
    """See `kernels.ops.Embedding`."""
    _launch(out, table, token_ids)


def gather_rows(out: Tensor, x: Tensor, rows: Tensor) -> None:
    """See `kernels.ops.GatherRows`."""
    _launch(out, x, rows)


def scatter_rows(out: Tensor, x: Tensor, rows: Tensor, column: int) -> None:
    """See `kernels.ops.ScatterRows`."""
    check_dtypes(out, x)
    check_contiguous(out)
    count, width = x.shape
    grid = (count, triton.cdiv(width, BLOCK))
    _scatter[grid](out, x, rows, column, width, out.stride(0), x.stride(0), BLOCK=BLOCK)


def _launch(out: Tensor, table: Tensor, rows: Tensor) -> None:
    check_dtypes(out, table)
    count, width = out.shape
    _gather[count, triton.cdiv(width, BLOCK)](out, table, rows, width, out.stride(0), table.stride(0), BLOCK=BLOCK)
