"""`kernels.ops.Peaks` in Triton, and what every search for a row's largest number is made of.

That is the best of each block of a row, then the best of the blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.softmax import block_of


@triton.jit
def peak(values: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """The largest of values [n] and its id; of equal ones the first, and the first NaN if there is one."""
    broken = values != values
    some_broken = tl.max(broken.to(tl.int32), 0) > 0
    place = tl.argmax(tl.where(some_broken, broken.to(values.dtype), values), 0)
    highest = tl.max(tl.where(broken, -float("inf"), values), 0)
    found = tl.sum(tl.where(tl.arange(0, values.shape[0]) == place, ids, 0), 0)
    return tl.where(some_broken, float("nan"), highest), found


@triton.jit
def _block_peaks(
    values: tl.tensor, ids: tl.tensor, scores: tl.tensor, size: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
) -> None:
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = scores + tl.program_id(0).to(tl.int64) * stride
    value, token_id = peak(tl.load(row + token, mask=token < size, other=-float("inf")), token.to(tl.int64))
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + place, value)
    tl.store(ids + place, token_id)


@triton.jit
def _best_block(
    values: tl.tensor,
    ids: tl.tensor,
    block_values: tl.tensor,
    block_ids: tl.tensor,
    blocks: tl.tensor,
    WITH_VALUES: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    block = tl.arange(0, BLOCKS)
    place = tl.program_id(0) * blocks + block
    candidates = tl.load(block_values + place, mask=block < blocks, other=-float("inf"))
    value, token_id = peak(candidates, tl.load(block_ids + place, mask=block < blocks, other=0))
    tl.store(ids + tl.program_id(0), token_id, mask=token_id >= 0)
    if WITH_VALUES:
        tl.store(values + tl.program_id(0), value)


def best_block(values: Tensor | None, ids: Tensor, block_values: Tensor, block_ids: Tensor) -> None:
    """ids int64 [R], values [R] = the best of block_values [R, blocks] and its id in block_ids int64 [R, blocks].

    Where that id is below 0 the row's stays as it is.
    """
    rows, blocks = block_values.shape
    _best_block[(rows,)](
        ids if values is None else values,
        ids,
        block_values,
        block_ids,
        blocks,
        WITH_VALUES=values is not None,
        BLOCKS=triton.next_power_of_2(blocks),
    )


def peaks(values: Tensor, ids: Tensor, scores: Tensor) -> None:
    """See `kernels.ops.Peaks`."""
    check_dtypes(scores)
    rows, size = scores.shape
    block = block_of(size)
    blocks = triton.cdiv(size, block)
    block_values, block_ids = scores.new_empty(rows, blocks), ids.new_empty(rows, blocks)
    _block_peaks[(rows, blocks)](block_values, block_ids, scores, size, scores.stride(0), BLOCK=block)
    best_block(values, ids, block_values, block_ids)
