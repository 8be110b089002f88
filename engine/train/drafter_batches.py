"""Batches of conversations with the target's states, in an order that depends on a seed alone.

Owns the padding, the shuffling within a shard, and the choice of positions that are learned. Knows no drafter.
Invariant: a position is learned only if the token behind it is part of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.train.drafter_features import ShardStates, alike, learned_positions
from engine.train.drafter_text import Shard


@dataclass(frozen=True, slots=True)
class Batch:
    """token_ids int64 [B, L]; features [B, L, 3 * H] and final [B, L, H]: the target's at each position, zero where
    there is no token. learned int64 [R, 2]: row and position of what is predicted from, the token behind it being part
    of an answer; log_sum fp32 [R], top int64 [R], next_ids int64 [R], kinds uint8 [R] of that token.
    """

    token_ids: Tensor
    features: Tensor
    final: Tensor
    learned: Tensor
    log_sum: Tensor
    top: Tensor
    next_ids: Tensor
    kinds: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


def batch_rows(shard: Shard, tokens: int, seed: str, *, held_out: bool) -> list[list[int]]:
    """The shard's conversations in batches of at most `tokens` padded tokens, shuffled by the seed."""
    rows = (shard.held_out == held_out).nonzero().flatten()
    groups = [[int(rows[index]) for index in group] for group in alike(shard.lengths[rows], tokens)]
    generator = torch.Generator().manual_seed(_number(seed))
    return [groups[index] for index in torch.randperm(len(groups), generator=generator).tolist()]


def _number(seed: str) -> int:
    value = 0
    for char in seed.encode():
        value = (value * 1_000_003 + char) % (1 << 62)
    return value


def make_batch(shard: Shard, states: ShardStates, rows: list[int]) -> Batch:
    """The conversations `rows` of the shard."""
    ends = shard.lengths.cumsum(0)
    spans = [(int(ends[row] - shard.lengths[row]), int(ends[row])) for row in rows]
    longest = max(end - start for start, end in spans)
    token_ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    features = states.features.new_zeros(len(rows), longest, states.features.shape[1])
    final = states.final.new_zeros(len(rows), longest, states.final.shape[1])
    learned, flat = [], []
    for row, (start, end) in enumerate(spans):
        length = end - start
        token_ids[row, :length] = shard.token_ids[start:end]
        features[row, :length] = states.features[start:end]
        final[row, :length] = states.final[start:end]
        positions = learned_positions(shard.kinds[start:end])
        learned.append(torch.stack((torch.full_like(positions, row), positions), dim=1))
        flat.append(start + positions)
    at = torch.cat(flat)
    return Batch(
        token_ids,
        features,
        final,
        torch.cat(learned),
        states.log_sum[at],
        states.top[at].to(torch.int64),
        shard.token_ids[at + 1].to(torch.int64),
        shard.kinds[at + 1],
    )
