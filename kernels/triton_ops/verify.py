"""`kernels.ops.VerifyMatch` and `VerifyRejection` in Triton: one program a request decides, and nothing leaves the GPU.

Rejection takes four launches: the sums of both softmaxes, by blocks; a program a request that walks its drafts and
notes the row to draw from; noise and weights of that row, by blocks; the best block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.noise import Stream
from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.draw import as_gumbel, as_uniform, best_of_quads, philox_words, quads_of
from kernels.triton_ops.peaks import peak
from kernels.triton_ops.softmax import block_sums, log_sum

_ACCEPT, _RESIDUAL, _TARGET = (tl.constexpr(int(s)) for s in (Stream.ACCEPT, Stream.RESIDUAL, Stream.TARGET))


@triton.jit
def _clear(out: tl.tensor, first: tl.tensor, rows: tl.tensor) -> None:
    """-1 to the rows that no request owns."""
    for row in range(first, rows):
        tl.store(out + row, tl.cast(-1, tl.int64))


@triton.jit(do_not_specialize=["rows"])
def _verify_match(
    out: tl.tensor, num_accepted: tl.tensor, drawn: tl.tensor, drafts: tl.tensor, starts: tl.tensor, rows: tl.tensor
) -> None:
    request = tl.program_id(0)
    if request == tl.num_programs(0) - 1:
        _clear(out, tl.load(starts + request), rows)
    else:
        first, end = tl.load(starts + request), tl.load(starts + request + 1)
        count = tl.cast(0, tl.int32)
        going = tl.cast(1, tl.int32)
        for row in range(first, end):
            token = tl.load(drawn + row)
            tl.store(out + row, tl.where(going > 0, token, -1))
            same = (token == tl.load(drafts + row)) & (row < end - 1)
            going = tl.where(same, going, 0)
            count += going
        tl.store(num_accepted + request, count)


def verify_match(out: Tensor, num_accepted: Tensor, drawn: Tensor, drafts: Tensor, starts: Tensor) -> None:
    """See `kernels.ops.VerifyMatch`."""
    _verify_match[(len(starts),)](out, num_accepted, drawn, drafts, starts, len(out))


@triton.jit(do_not_specialize=["rows"])
def _walk(
    out: tl.tensor,
    num_accepted: tl.tensor,
    last_rows: tl.tensor,
    scores: tl.tensor,
    draft_scores: tl.tensor,
    target_maxima: tl.tensor,
    target_sums: tl.tensor,
    draft_maxima: tl.tensor,
    draft_sums: tl.tensor,
    drafts: tl.tensor,
    starts: tl.tensor,
    addresses: tl.tensor,
    stride: tl.tensor,
    draft_stride: tl.tensor,
    blocks: tl.tensor,
    rows: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Accepted drafts to out, -1 behind; to last_rows the row whose token is still to be drawn, -1 for none."""
    request = tl.program_id(0)
    if request == tl.num_programs(0) - 1:
        _clear(out, tl.load(starts + request), rows)
    else:
        first, end = tl.load(starts + request), tl.load(starts + request + 1)
        count = tl.cast(0, tl.int32)
        going = tl.cast(1, tl.int32)
        for row in range(first, end):
            token = tl.cast(-1, tl.int64)
            if (going > 0) & (row < end - 1):
                draft = tl.load(drafts + row)
                target_log = tl.load(scores + tl.cast(row, tl.int64) * stride + draft).to(tl.float64)
                draft_log = tl.load(draft_scores + tl.cast(row, tl.int64) * draft_stride + draft).to(tl.float64)
                target = tl.exp(target_log - log_sum(target_maxima, target_sums, row, blocks, BLOCKS))
                proposed = tl.exp(draft_log - log_sum(draft_maxima, draft_sums, row, blocks, BLOCKS))
                quad = tl.arange(0, 1)
                address = addresses + row * 4
                word, _, _, _ = philox_words(quad, address, quad * 0 + _ACCEPT)
                accepted = tl.sum(as_uniform(word), 0) < target / proposed
                token = tl.where(accepted, draft, token)
                going = tl.where(accepted, going, 0)
                count += going
            tl.store(out + row, token)
        tl.store(num_accepted + request, count)
        tl.store(last_rows + request, tl.where(end > first, first + count, -1))


@triton.jit
def _block_redraws(
    values: tl.tensor,
    ids: tl.tensor,
    last_rows: tl.tensor,
    scores: tl.tensor,
    draft_scores: tl.tensor,
    target_maxima: tl.tensor,
    target_sums: tl.tensor,
    draft_maxima: tl.tensor,
    draft_sums: tl.tensor,
    starts: tl.tensor,
    addresses: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    draft_stride: tl.tensor,
    sum_blocks: tl.tensor,
    QUADS: tl.constexpr,
    SUM_BLOCKS: tl.constexpr,
) -> None:
    """For a request's last row the best token of each block: log p + noise, or log(p - q) + noise after a rejection."""
    request = tl.program_id(0)
    row = tl.load(last_rows + request)
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    if row >= 0:
        bonus = row == tl.load(starts + request + 1) - 1
        address = addresses + row * 4
        w, x, y, z = philox_words(quad, address, tl.where(bonus, _TARGET, _RESIDUAL))
        total = log_sum(target_maxima, target_sums, row, sum_blocks, SUM_BLOCKS)
        line = scores + row.to(tl.int64) * stride + quad * 4
        a = _probability(line, 0, quad, size, total)
        b = _probability(line, 1, quad, size, total)
        c = _probability(line, 2, quad, size, total)
        d = _probability(line, 3, quad, size, total)
        if not bonus:
            total = log_sum(draft_maxima, draft_sums, row, sum_blocks, SUM_BLOCKS)
            line = draft_scores + row.to(tl.int64) * draft_stride + quad * 4
            a = tl.maximum(a - _probability(line, 0, quad, size, total), 0.0)
            b = tl.maximum(b - _probability(line, 1, quad, size, total), 0.0)
            c = tl.maximum(c - _probability(line, 2, quad, size, total), 0.0)
            d = tl.maximum(d - _probability(line, 3, quad, size, total), 0.0)
        value, token = best_of_quads(_noisy_log(a, w), _noisy_log(b, x), _noisy_log(c, y), _noisy_log(d, z), quad)
        place = request * tl.num_programs(1) + tl.program_id(1)
        tl.store(values + place, value)
        tl.store(ids + place, token)


@triton.jit
def _probability(line: tl.tensor, lane: tl.constexpr, quad: tl.tensor, size: tl.tensor, total: tl.tensor) -> tl.tensor:
    return tl.exp(tl.load(line + lane, mask=quad * 4 + lane < size, other=-float("inf")).to(tl.float64) - total)


@triton.jit
def _noisy_log(weight: tl.tensor, word: tl.tensor) -> tl.tensor:
    """log(weight) + noise, -inf for a weight of 0."""
    inside = weight > 0.0
    return tl.where(inside, tl.log(tl.where(inside, weight, 1.0)) + as_gumbel(word), -float("inf"))


@triton.jit
def _place_best(
    out: tl.tensor, values: tl.tensor, ids: tl.tensor, last_rows: tl.tensor, blocks: tl.tensor, BLOCKS: tl.constexpr
) -> None:
    row = tl.load(last_rows + tl.program_id(0))
    if row >= 0:
        block = tl.arange(0, BLOCKS)
        place = tl.program_id(0) * blocks + block
        candidates = tl.load(values + place, mask=block < blocks, other=-float("inf"))
        _, token = peak(candidates, tl.load(ids + place, mask=block < blocks, other=0))
        tl.store(out + row, token)


def verify_rejection(
    out: Tensor,
    num_accepted: Tensor,
    scores: Tensor,
    draft_scores: Tensor,
    drafts: Tensor,
    starts: Tensor,
    addresses: Tensor,
) -> None:
    """See `kernels.ops.VerifyRejection`."""
    check_dtypes(scores)
    (rows, size), requests = scores.shape, len(starts) - 1
    target, draft = block_sums(scores), block_sums(draft_scores)
    last_rows = starts.new_empty(requests)
    sum_blocks = target[0].shape[1]
    padded = triton.next_power_of_2(sum_blocks)
    _walk[(requests + 1,)](
        out,
        num_accepted,
        last_rows,
        scores,
        draft_scores,
        *target,
        *draft,
        drafts,
        starts,
        addresses,
        scores.stride(0),
        draft_scores.stride(0),
        sum_blocks,
        rows,
        BLOCKS=padded,
    )
    quads = quads_of(size)
    blocks = triton.cdiv(size, quads * 4)
    values = scores.new_empty(requests, blocks, dtype=torch.float64)
    ids = out.new_empty(requests, blocks)
    _block_redraws[(requests, blocks)](
        values,
        ids,
        last_rows,
        scores,
        draft_scores,
        *target,
        *draft,
        starts,
        addresses,
        size,
        scores.stride(0),
        draft_scores.stride(0),
        sum_blocks,
        QUADS=quads,
        SUM_BLOCKS=padded,
    )
    _place_best[(requests,)](out, values, ids, last_rows, blocks, BLOCKS=triton.next_power_of_2(blocks))
