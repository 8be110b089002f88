"""`kernels.ops.LogProbabilities` in Triton: fp64 sums by blocks, and the largest of each block, merged into one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.order import ranked, score_of, token_of
from kernels.triton_ops.softmax import block_of, block_sums, log_sum


@triton.jit
def _block_largest(
    largest: tl.tensor,
    source: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    count: tl.tensor,
    SCORES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The keys of the largest `count` of each block, largest first. SCORES: source holds scores, not yet keys."""
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = source + tl.program_id(0).to(tl.int64) * stride
    if SCORES:
        keys = ranked(tl.load(row + place, mask=place < size, other=-float("inf")), place)
    else:
        keys = tl.load(row + place, mask=place < size, other=-1)
    target = largest + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * count
    for rank in range(count):
        best = tl.max(keys, 0)
        tl.store(target + rank, best)
        keys = tl.where(keys == best, -1, keys)


@triton.jit
def _log_probabilities(
    out: tl.tensor,
    top_values: tl.tensor,
    top_ids: tl.tensor,
    largest: tl.tensor,
    scores: tl.tensor,
    token_ids: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    count: tl.tensor,
    BLOCKS: tl.constexpr,
    COUNT: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    token_id = tl.load(token_ids + row)
    if token_id >= 0:
        total = log_sum(maxima, sums, row, blocks, BLOCKS)
        score = tl.load(scores + row.to(tl.int64) * stride + token_id).to(tl.float64)
        tl.store(out + row, (score - total).to(out.dtype.element_ty))
        if COUNT > 0:
            rank = tl.arange(0, COUNT)
            place = row * count + rank
            keys = tl.load(largest + place, mask=rank < count, other=-1)
            logprob = score_of(keys).to(tl.float64) - total
            tl.store(top_values + place, logprob.to(out.dtype.element_ty), mask=rank < count)
            tl.store(top_ids + place, token_of(keys), mask=rank < count)


def _largest(scores: Tensor, count: int) -> Tensor:
    """The keys of the largest `count` of scores [R, V], largest first: int64 [R, count]."""
    rows, source = len(scores), scores
    block = max(block_of(scores.shape[1]), triton.next_power_of_2(4 * count))
    while True:
        size = source.shape[1]
        blocks = triton.cdiv(size, block)
        largest = scores.new_empty(rows, blocks * count, dtype=torch.int64)
        _block_largest[(rows, blocks)](
            largest, source, size, source.stride(0), count, SCORES=source is scores, BLOCK=block
        )
        if blocks == 1:
            return largest
        source = largest


def log_probabilities(out: Tensor, top_values: Tensor, top_ids: Tensor, scores: Tensor, token_ids: Tensor) -> None:
    """See `kernels.ops.LogProbabilities`."""
    check_dtypes(scores)
    rows, count = top_ids.shape
    maxima, sums = block_sums(scores)
    blocks = maxima.shape[1]
    _log_probabilities[(rows,)](
        out,
        top_values,
        top_ids,
        _largest(scores, count) if count else top_ids,
        scores,
        token_ids,
        maxima,
        sums,
        scores.stride(0),
        blocks,
        count,
        BLOCKS=triton.next_power_of_2(blocks),
        COUNT=triton.next_power_of_2(count) if count else 0,
    )
