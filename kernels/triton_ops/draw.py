"""`kernels.ops.Draw` in Triton: every block of the vocabulary its best token, then the best of the blocks.

The noise is that of `kernels.noise`, word for word; log1p(-v) is log(1 - v) here, since 1 - v is exact in fp64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.peaks import best_block, peak

MOST_QUADS = 1024  # of a program: four tokens that share a Philox block


def quads_of(size: int) -> int:
    """Quads of a program, for a vocabulary of that size."""
    return min(MOST_QUADS, int(triton.next_power_of_2(-(-size // 4))))


@triton.jit
def philox_words(quad: tl.tensor, address: tl.tensor, stream: tl.tensor) -> tl.tensor:
    """Four uint32 words for each quad of token ids at address: seed, position, sample index (and its own stream)."""
    seed = tl.load(address)
    zero = (quad * 0).to(tl.uint32)
    position, sample_index = tl.load(address + 1).to(tl.uint32), tl.load(address + 2).to(tl.uint32)
    low, high = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox_impl(
        quad.to(tl.uint32), zero + position, zero + sample_index, zero + stream.to(tl.uint32), zero + low, zero + high
    )


@triton.jit
def as_uniform(word: tl.tensor) -> tl.tensor:
    """A number in (0, 1), fp64, of each uint32 word."""
    return (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32


@triton.jit
def as_gumbel(word: tl.tensor) -> tl.tensor:
    """Gumbel noise, fp64, of each uint32 word."""
    return -tl.log(-tl.log(1.0 - as_uniform(word)))


@triton.jit
def best_of_quads(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, quad: tl.tensor) -> tl.tensor:
    """The largest and its token id of four values a quad, those of tokens 4 quad to 4 quad + 3; ties to the lowest."""
    best, token = a, quad.to(tl.int64) * 4
    first = token
    token = tl.where(b > best, first + 1, token)
    best = tl.where(b > best, b, best)
    token = tl.where(c > best, first + 2, token)
    best = tl.where(c > best, c, best)
    token = tl.where(d > best, first + 3, token)
    best = tl.where(d > best, d, best)
    return peak(best, token)


@triton.jit
def _block_draws(
    values: tl.tensor,
    ids: tl.tensor,
    scores: tl.tensor,
    addresses: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    QUADS: tl.constexpr,
) -> None:
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    row = scores + tl.program_id(0).to(tl.int64) * stride + quad * 4
    a = tl.load(row, mask=quad * 4 < size, other=-float("inf")).to(tl.float64)
    b = tl.load(row + 1, mask=quad * 4 + 1 < size, other=-float("inf")).to(tl.float64)
    c = tl.load(row + 2, mask=quad * 4 + 2 < size, other=-float("inf")).to(tl.float64)
    d = tl.load(row + 3, mask=quad * 4 + 3 < size, other=-float("inf")).to(tl.float64)
    highest = tl.max(tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), 0)
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    address = addresses + tl.program_id(0) * 4
    stream = tl.load(address + 3)
    if (highest > -float("inf")) & (stream >= 0):
        w, x, y, z = philox_words(quad, address, stream)
        value, token = best_of_quads(a + as_gumbel(w), b + as_gumbel(x), c + as_gumbel(y), d + as_gumbel(z), quad)
        tl.store(values + place, value)
        tl.store(ids + place, token)
    else:  # no token of the block is left, or the row is passed over: no noise is needed
        tl.store(values + place, -float("inf"))
        tl.store(ids + place, tl.where(stream >= 0, tl.program_id(1).to(tl.int64) * QUADS * 4, -1))


def draw(out: Tensor, scores: Tensor, addresses: Tensor) -> None:
    """See `kernels.ops.Draw`."""
    check_dtypes(scores)
    rows, size = scores.shape
    quads = quads_of(size)
    blocks = triton.cdiv(size, quads * 4)
    values = scores.new_empty(rows, blocks, dtype=torch.float64)
    ids = out.new_empty(rows, blocks)
    _block_draws[(rows, blocks)](values, ids, scores, addresses, size, scores.stride(0), QUADS=quads)
    best_block(None, out, values, ids)
