"""fp32 numbers as integers in the same order: what is searched by halves, and what carries a token id along."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def order_of(scores: tl.tensor) -> tl.tensor:
    """int64 numbers from 0 to 2^32 - 1 in the order of the fp32 scores; both zeros are one."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) + 2147483648


@triton.jit
def score_at(order: tl.tensor) -> tl.tensor:
    """The fp32 score that stands there in the order."""
    bits = (order - 2147483648).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def ranked(scores: tl.tensor, token_ids: tl.tensor) -> tl.tensor:
    """int64 keys, larger for larger scores and, of equal ones, for lower ids; -1 for a score of -inf."""
    keys = (order_of(scores) << 31) + (2147483647 - token_ids.to(tl.int64))
    return tl.where(scores > -float("inf"), keys, -1)


@triton.jit
def score_of(keys: tl.tensor) -> tl.tensor:
    """The fp32 scores of `ranked` keys."""
    return tl.where(keys < 0, -float("inf"), score_at(tl.maximum(keys, 0) >> 31))


@triton.jit
def token_of(keys: tl.tensor) -> tl.tensor:
    """The token ids, int64, of `ranked` keys; -1 for -inf."""
    return tl.where(keys < 0, -1, 2147483647 - (keys & 2147483647))
