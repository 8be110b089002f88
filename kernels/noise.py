"""The noise that tokens are drawn with: Philox4x32-10, addressed, never consumed.

A draw's noise is a function of (seed, token, position, sample index, stream) alone, so the same seed gives the same
text whatever else is in the batch, with speculation on or off (design, section 6). Philox: Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011; constants and round from the paper, checked against its known-answer
vectors. Words are held in int64 tensors, since torch has no full uint32 arithmetic.
"""

from __future__ import annotations

import enum
from typing import TypeVar

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
LANES = 4  # words of one Philox block, given to four neighbouring token ids

Word = TypeVar("Word", Tensor, int)


class Stream(enum.IntEnum):
    """What a draw is for; noise of different streams is independent."""

    TARGET = 0
    ACCEPT = 1
    RESIDUAL = 2
    XTC = 3
    DRAFT = 4


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> list[Word]:
    """Four words from a 128-bit counter and a 64-bit key of words: numbers below 2^32, or int64 tensors of such."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # int64 products wrap, but their low 64 bits are right, and the mask after an arithmetic shift yields the high
        # word
        product_0, product_1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        high_0, low_0 = (product_0 >> 32) & MASK32, product_0 & MASK32
        high_1, low_1 = (product_1 >> 32) & MASK32, product_1 & MASK32
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + WEYL_0) & MASK32, (k1 + WEYL_1) & MASK32
    return [c0, c1, c2, c3]


def gumbel(token_ids: Tensor, seed: int, position: int, sample_index: int, stream: int) -> Tensor:
    """Standard Gumbel noise for each of token_ids (int64 [n]) at one position of one request. Returns fp64 [n]."""
    words = _words(token_ids // LANES, seed, position, sample_index, stream)
    return _to_gumbel(words.gather(0, (token_ids % LANES).unsqueeze(0)).squeeze(0))


def gumbel_vocabulary(
    size: int, seed: int, position: int, sample_index: int, stream: int, device: torch.device
) -> Tensor:
    """The same as `gumbel` for ids 0 to size - 1, at a quarter of the work: a Philox block serves four ids."""
    blocks = torch.arange(-(-size // LANES), device=device)
    return _to_gumbel(_words(blocks, seed, position, sample_index, stream).t().reshape(-1)[:size])


def uniform(seed: int, position: int, sample_index: int, stream: int) -> float:
    """One number in (0, 1) for one position of one request: the lane of token id 0."""
    words = philox4x32((0, position, sample_index, int(stream)), (seed & MASK32, (seed >> 32) & MASK32))
    return (words[0] + 0.5) / 2.0**32


def _words(blocks: Tensor, seed: int, position: int, sample_index: int, stream: int) -> Tensor:
    """int64 [4, n]: the Philox words of each block of four token ids."""
    c1, c2, c3, k0, k1 = (
        torch.full_like(blocks, word)
        for word in (position, sample_index, int(stream), seed & MASK32, (seed >> 32) & MASK32)
    )
    return torch.stack(philox4x32((blocks, c1, c2, c3), (k0, k1)))


def _to_uniform(words: Tensor) -> Tensor:
    return (words.double() + 0.5) / 2.0**32


def _to_gumbel(words: Tensor) -> Tensor:
    return -torch.log(-torch.log1p(-_to_uniform(words)))
