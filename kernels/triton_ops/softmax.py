"""The sum of a softmax over a whole vocabulary: fp64 sums of its blocks, joined where they are needed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_SCORES = 4096  # of a program


def block_of(size: int) -> int:
    """Scores of a program, for a vocabulary of that size: the order of a row's sums depends on nothing else."""
    return min(MOST_SCORES, int(triton.next_power_of_2(size)))


@triton.jit
def _block_sums(
    maxima: tl.tensor, sums: tl.tensor, scores: tl.tensor, size: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
) -> None:
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = scores + tl.program_id(0).to(tl.int64) * stride
    score = tl.load(row + token, mask=token < size, other=-float("inf")).to(tl.float64)
    highest = tl.max(score, 0)
    base = tl.where(highest > -float("inf"), highest, 0.0)
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(maxima + place, highest)
    tl.store(sums + place, tl.sum(tl.exp(score - base), 0))


@triton.jit
def log_sum(maxima: tl.tensor, sums: tl.tensor, row: tl.tensor, blocks: tl.tensor, BLOCKS: tl.constexpr) -> tl.tensor:
    """log(sum(exp(scores))) of one row, fp64, from what `block_sums` left."""
    block = tl.arange(0, BLOCKS)
    highest = tl.load(maxima + row * blocks + block, mask=block < blocks, other=-float("inf"))
    share = tl.load(sums + row * blocks + block, mask=block < blocks, other=0.0)
    top = tl.max(highest, 0)
    return top + tl.log(tl.sum(share * tl.exp(highest - top), 0))


def block_sums(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each block of scores [R, V] and the sum of exp(score - largest), both fp64 [R, blocks]."""
    rows, size = scores.shape
    block = block_of(size)
    blocks = triton.cdiv(size, block)
    maxima, sums = scores.new_empty(2, rows, blocks, dtype=torch.float64)
    _block_sums[(rows, blocks)](maxima, sums, scores, size, scores.stride(0), BLOCK=block)
    return maxima, sums
