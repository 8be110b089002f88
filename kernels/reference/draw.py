"""The draw in plain torch: noise for the tokens that are left, and the largest sum (the Gumbel-max trick)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.noise import gumbel, gumbel_vocabulary


def draw(out: Tensor, scores: Tensor, addresses: Tensor) -> None:
    """See `kernels.ops.Draw`."""
    for row, address in enumerate(addresses.tolist()):
        if address[-1] >= 0:
            out[row] = _draw_row(scores[row], address)


def _draw_row(scores: Tensor, address: list[int]) -> Tensor:
    """One token id. scores [V]; address: seed, position, sample index, stream."""
    seed, position, sample_index, stream = address
    survivors = (scores > -math.inf).nonzero().squeeze(-1)
    if len(survivors) == len(scores):
        noise = gumbel_vocabulary(len(scores), seed, position, sample_index, stream, scores.device)
        return torch.argmax(scores.double() + noise)
    noise = gumbel(survivors, seed, position, sample_index, stream)
    return survivors[torch.argmax(scores[survivors].double() + noise)]
