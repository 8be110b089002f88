"""Row gathers in Triton: `embedding` and `gather_rows` of `kernels.ops`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes

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


def embedding(out: Tensor, token_ids: Tensor, table: Tensor) -> None:
    """See `kernels.ops.Embedding`."""
    _launch(out, table, token_ids)


def gather_rows(out: Tensor, x: Tensor, rows: Tensor) -> None:
    """See `kernels.ops.GatherRows`."""
    _launch(out, x, rows)


def _launch(out: Tensor, table: Tensor, rows: Tensor) -> None:
    check_dtypes(out, table)
    count, width = out.shape
    _gather[count, triton.cdiv(width, BLOCK)](out, table, rows, width, out.stride(0), table.stride(0), BLOCK=BLOCK)
