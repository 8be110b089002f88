"""Rows picked and placed in plain torch: `embedding`, `gather_rows` and `scatter_rows` of `kernels.ops`."""

from __future__ import annotations

import torch
from torch import Tensor


def embedding(out: Tensor, token_ids: Tensor, table: Tensor) -> None:
    """See `kernels.ops.Embedding`."""
    torch.index_select(table, 0, token_ids, out=out)


def gather_rows(out: Tensor, x: Tensor, rows: Tensor) -> None:
    """See `kernels.ops.GatherRows`."""
    torch.index_select(x, 0, rows, out=out)


def scatter_rows(out: Tensor, x: Tensor, rows: Tensor, column: int) -> None:
    """See `kernels.ops.ScatterRows`."""
    kept = rows >= 0
    out[:, column : column + x.shape[1]].index_copy_(0, rows[kept], x[kept])
