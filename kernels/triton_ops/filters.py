"""`kernels.ops.FilterScores` in Triton: the threshold that a row's filters amount to, found digit by digit.

A row's threshold is the largest number for which enough scores (top-k), or scores of enough mass (top-p), are at least
as large; its place in the order of fp32 numbers is found exactly, four bits at a time, without a sort. What is
searched are the few scores near the largest, laid side by side, and the whole row only where those are not enough.
Mass counts in whole units.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.order import order_of, score_at
from kernels.triton_ops.softmax import block_of

_NEAR = tl.constexpr(10.0)  # below the largest score: what is further away has less than e^-10 of its probability
_CHUNK = 1024  # scores looked at together


@triton.jit
def _units(scores: tl.tensor, highest: tl.tensor) -> tl.tensor:
    """int64: the probability of scores in whole units, 2^40 for the likeliest token; sums are the same in any order."""
    mass = tl.exp(scores.to(tl.float64) - highest.to(tl.float64)) * 1099511627776.0
    return ((mass + 4503599627370496.0) - 4503599627370496.0).to(tl.int64)  # 2^52: what is added drops the fraction


@triton.jit
def _amounts_from(
    scores: tl.tensor,
    size: tl.tensor,
    orders: tl.tensor,
    highest: tl.tensor,
    COUNTED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> tl.tensor:
    """For each of `orders` [n] how many scores stand there or behind, or their units; int64 [n]."""
    total = tl.zeros(orders.shape, tl.int64)
    for start in range(0, size, CHUNK):
        place = start + tl.arange(0, CHUNK)
        score = tl.load(scores + place, mask=place < size, other=-float("inf"))
        amount = (place < size).to(tl.int64)
        if not COUNTED:
            amount = amount * _units(score, highest)
        total += tl.sum(tl.where(order_of(score)[None, :] >= orders[:, None], amount[None, :], 0), 1)
    return total


@triton.jit
def _last_order(
    scores: tl.tensor, size: tl.tensor, need: tl.tensor, highest: tl.tensor, COUNTED: tl.constexpr, CHUNK: tl.constexpr
) -> tl.tensor:
    """The last place in the order from which on there is at least what is needed: all together are enough."""
    order = tl.cast(0, tl.int64)
    part = tl.cast(268435456, tl.int64)  # 2^28: four bits of the place at a time
    for _ in range(8):
        orders = order + tl.arange(0, 16) * part
        enough = _amounts_from(scores, size, orders, highest, COUNTED, CHUNK) >= need
        order += (tl.sum(enough.to(tl.int64), 0) - 1) * part
        part = part // 16
    return order


@triton.jit
def _units_from(
    scores: tl.tensor, size: tl.tensor, order: tl.tensor, highest: tl.tensor, CHUNK: tl.constexpr
) -> tl.tensor:
    """The units of all scores that stand at `order` or behind."""
    orders = order + tl.zeros((1,), tl.int64)
    return tl.sum(_amounts_from(scores, size, orders, highest, False, CHUNK), 0)


@triton.jit
def _scale(
    out: tl.tensor,
    maxima: tl.tensor,
    logits: tl.tensor,
    settings: tl.tensor,
    size: tl.tensor,
    out_stride: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * stride + token, mask=token < size, other=-float("inf"))
    temperature = tl.load(settings + row * 4).to(tl.float32) + tl.zeros((BLOCK,), tl.float32)
    score = tl.div_rn(logit, tl.where(temperature == 0.0, 1.0, temperature))
    tl.store(out + row * out_stride + token, score, mask=(token < size) & (temperature != 0.0))
    tl.store(maxima + row * tl.num_programs(1) + tl.program_id(1), tl.max(score, 0))


@triton.jit
def _highest(maxima: tl.tensor, row: tl.tensor, blocks: tl.tensor, BLOCKS: tl.constexpr) -> tl.tensor:
    block = tl.arange(0, BLOCKS)
    return tl.max(tl.load(maxima + row * blocks + block, mask=block < blocks, other=-float("inf")), 0)


@triton.jit
def _measure(
    counts: tl.tensor,
    masses: tl.tensor,
    scores: tl.tensor,
    maxima: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """How many scores of each block are near the row's largest; masses [R, blocks, 2]: of all, and of these."""
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    highest = _highest(maxima, row, tl.num_programs(1), BLOCKS)
    score = tl.load(scores + row * stride + token, mask=token < size, other=-float("inf"))
    near = score >= highest - _NEAR
    mass = tl.where(token < size, _units(score, highest), 0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(counts + place, tl.sum(near.to(tl.int32), 0))
    tl.store(masses + place * 2, tl.sum(mass, 0))
    tl.store(masses + place * 2 + 1, tl.sum(tl.where(near, mass, 0), 0))


@triton.jit
def _gather_near(
    near_scores: tl.tensor,
    scores: tl.tensor,
    maxima: tl.tensor,
    counts: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    highest = _highest(maxima, row, tl.num_programs(1), BLOCKS)
    block = tl.arange(0, BLOCKS)
    before = tl.load(counts + row * tl.num_programs(1) + block, mask=block < tl.program_id(1), other=0)
    score = tl.load(scores + row * stride + token, mask=token < size, other=-float("inf"))
    near = (score >= highest - _NEAR).to(tl.int32)
    place = tl.sum(before, 0) + tl.cumsum(near, 0) - 1
    tl.store(near_scores + row * size + place, score, mask=near > 0)


@triton.jit
def _find_threshold(
    thresholds: tl.tensor,
    scores: tl.tensor,
    near_scores: tl.tensor,
    maxima: tl.tensor,
    counts: tl.tensor,
    masses: tl.tensor,
    settings: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row, block = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS)
    top_k = tl.load(settings + row * 4 + 1).to(tl.int64)
    top_p, min_p = tl.load(settings + row * 4 + 2), tl.load(settings + row * 4 + 3)
    highest = _highest(maxima, row, blocks, BLOCKS)
    line, near_line = scores + row * stride, near_scores + row * size
    there = block < blocks
    near_size = tl.sum(tl.load(counts + row * blocks + block, mask=there, other=0), 0)
    kept = tl.sum(tl.load(masses + (row * blocks + block) * 2, mask=there, other=0), 0)
    near = tl.sum(tl.load(masses + (row * blocks + block) * 2 + 1, mask=there, other=0), 0)
    order = tl.cast(0, tl.int64)
    if (top_k > 0) & (top_k < size):
        if near_size >= top_k:
            order = _last_order(near_line, near_size, top_k, highest, True, CHUNK)
            kept = _units_from(near_line, near_size, order, highest, CHUNK)
            near = kept
        else:
            order = _last_order(line, size, top_k, highest, True, CHUNK)
            kept = _units_from(line, size, order, highest, CHUNK)
    if top_p < 1.0:
        need = tl.minimum(tl.ceil(top_p * kept.to(tl.float64)).to(tl.int64), kept)
        if near >= need:
            order = tl.maximum(order, _last_order(near_line, near_size, need, highest, False, CHUNK))
        else:
            order = tl.maximum(order, _last_order(line, size, need, highest, False, CHUNK))
    threshold = tl.where(order > 0, score_at(order), -float("inf"))
    if min_p > 0.0:
        threshold = tl.maximum(threshold, (highest.to(tl.float64) + tl.log(min_p)).to(tl.float32))
    passed_over = tl.load(settings + row * 4) == 0.0
    tl.store(thresholds + row, tl.where(passed_over, -float("inf"), threshold))


@triton.jit
def _drop(scores: tl.tensor, thresholds: tl.tensor, size: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr) -> None:
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + row * stride + token, mask=token < size, other=0.0)
    dropped = (token < size) & (score < tl.load(thresholds + row))
    tl.store(scores + row * stride + token, tl.full((BLOCK,), -float("inf"), tl.float32), mask=dropped)


def filter_scores(out: Tensor, logits: Tensor, settings: Tensor) -> None:
    """See `kernels.ops.FilterScores`."""
    check_dtypes(out, logits)
    rows, size = out.shape
    block = block_of(size)
    blocks = triton.cdiv(size, block)
    shape = {"BLOCKS": triton.next_power_of_2(blocks), "BLOCK": block}
    maxima, thresholds = out.new_empty(rows, blocks), out.new_empty(rows)
    counts = out.new_empty(rows, blocks, dtype=torch.int32)
    masses = out.new_empty(rows, blocks, 2, dtype=torch.int64)
    near_scores = out.new_empty(rows, size)
    grid, stride = (rows, blocks), out.stride(0)
    _scale[grid](out, maxima, logits, settings, size, stride, logits.stride(0), BLOCK=block)
    _measure[grid](counts, masses, out, maxima, size, stride, **shape)
    _gather_near[grid](near_scores, out, maxima, counts, size, stride, **shape)
    _find_threshold[(rows,)](
        thresholds,
        out,
        near_scores,
        maxima,
        counts,
        masses,
        settings,
        size,
        stride,
        blocks,
        BLOCKS=triton.next_power_of_2(blocks),
        CHUNK=min(_CHUNK, block),
        num_warps=8,
    )
    _drop[grid](out, thresholds, size, stride, BLOCK=block)
