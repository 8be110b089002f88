"""Rows picked and placed in C++: `embedding`, `gather_rows` and `scatter_rows` of `kernels.ops`. Row numbers are not
checked."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, pointer, rows_pointer

_gather = by_dtype("pz_gather", 3, 4)
_scatter = by_dtype("pz_scatter", 3, 4)


def embedding(out: Tensor, token_ids: Tensor, table: Tensor) -> None:
    """See `kernels.ops.Embedding`."""
    _rows(out, table, token_ids)


def gather_rows(out: Tensor, x: Tensor, rows: Tensor) -> None:
    """See `kernels.ops.GatherRows`."""
    _rows(out, x, rows)


def scatter_rows(out: Tensor, x: Tensor, rows: Tensor, column: int) -> None:
    """See `kernels.ops.ScatterRows`."""
    dtype, width = x.dtype, x.shape[1]
    if column < 0 or column + width > out.shape[1]:
        raise ValueError(f"{width} columns from {column} on do not fit into {out.shape[1]}")
    target = pointer(out, dtype) + column * out.element_size()
    source, source_stride = rows_pointer(x, dtype)
    _scatter[dtype](target, source, pointer(rows, torch.int64), len(rows), width, out.shape[1], source_stride)


def _rows(out: Tensor, table: Tensor, rows: Tensor) -> None:
    target, target_stride = rows_pointer(out, table.dtype)
    source, source_stride = rows_pointer(table, table.dtype)
    call = _gather[table.dtype]
    call(target, source, pointer(rows, torch.int64), len(rows), table.shape[1], target_stride, source_stride)
