"""How a product's inputs are split among programs: by its weight's shape alone, so that a row's sums run in one order.

Owns the sizes that decide bits: rows of a tile, the splits, and from how many rows on one program does all splits. A
program of few rows sums one split and leaves it in fp32 for a second pass; a program of many rows goes through the same
splits one after the other and adds them in the same order, so both give the same bits. Nothing is added atomically.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M = 16  # rows of a tile, for any number of rows
MANY_ROWS = 64  # above, every split is summed by one program
MANY_BLOCK_M = 16  # rows of a tile then; 32 keeps the instruction on NVIDIA, but only a GPU can show that the bits stay
TARGET_PROGRAMS = 256  # about two for each multiprocessor of the largest GPUs
LEAST_INPUTS = 256  # of a split
_REDUCED_COLUMNS = 256


def steps_per_split(outputs: int, block_n: int, steps: int, step_inputs: int) -> int:
    """Steps of `step_inputs` inputs that make one split, of `steps` in all."""
    programs = -(-outputs // block_n)
    splits = max(1, min(TARGET_PROGRAMS // programs, steps * step_inputs // LEAST_INPUTS))
    return -(-steps // splits)


def block_rows(rows: int) -> int:
    """Rows of a tile in a product of so many."""
    return BLOCK_M if rows <= MANY_ROWS else MANY_BLOCK_M


def partial_sums(out: Tensor, splits: int) -> Tensor | None:
    """Where the splits of a product go, fp32 [splits, M, N]; None where one program sums them all."""
    rows, outputs = out.shape
    if splits == 1 or rows > MANY_ROWS:
        return None
    return torch.empty(splits, rows, outputs, dtype=torch.float32, device=out.device)


@triton.jit
def _add_splits(
    out: tl.tensor,
    partial: tl.tensor,
    bias: tl.tensor,
    outputs: tl.tensor,
    out_stride: tl.tensor,
    splits: tl.tensor,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, columns = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < outputs
    place = partial + row.to(tl.int64) * outputs + columns
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(place + split * tl.cast(tl.num_programs(0), tl.int64) * outputs, mask=inside, other=0)
    if BIASED:
        total += tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * out_stride + columns, total.to(out.dtype.element_ty), mask=inside)


def add_splits(out: Tensor, partial: Tensor, bias: Tensor | None) -> None:
    """out [M, N] = the sum of partial [splits, M, N] in order, + bias [N]."""
    splits, rows, outputs = partial.shape
    grid = (rows, triton.cdiv(outputs, _REDUCED_COLUMNS))
    given = partial if bias is None else bias
    _add_splits[grid](out, partial, given, outputs, out.stride(0), splits, bias is not None, _REDUCED_COLUMNS)
