"""The reduced vocabulary of a drafter: the tokens that the target writes most.

Owns the choice and the two tables of the public layout. Invariant: ids of the reduced vocabulary ascend with those of
the target's, and every end token of the model is among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.train.drafter_stories import ANSWER, BY_MODEL
from engine.train.drafter_text import read_shard

_ASKED = 0.25  # what a token of a question that the model wrote counts


def count_tokens(shards: Sequence[Path], vocab_size: int) -> tuple[Tensor, Tensor]:
    """fp64 [V] counts of tokens in answers that are trained on, and the same with questions at a quarter."""
    answers, both = (torch.zeros(vocab_size, dtype=torch.float64) for _ in range(2))
    for path in shards:
        shard = read_shard(path)
        trained = (~shard.held_out).repeat_interleave(shard.lengths.to(torch.int64))
        for kinds, share in ((shard.kinds >= ANSWER, 1.0), (shard.kinds == BY_MODEL, _ASKED)):
            found = torch.bincount(shard.token_ids[kinds & trained].long(), minlength=vocab_size)
            both += share * found
            answers += found if share == 1.0 else 0
    return answers, both


def choose_vocabulary(counts: Tensor, size: int, always: Sequence[int]) -> Tensor:
    """int64 [size], ascending: `always` and the most counted; of those that count alike the smaller ids."""
    ranked = counts.clone()
    ranked[list(always)] = torch.inf
    order = ranked.argsort(descending=True, stable=True)
    return order[:size].sort().values


def coverage(counts: Tensor, chosen: Tensor) -> float:
    """The share of counted tokens that are in the vocabulary."""
    total = float(counts.sum())
    return float(counts[chosen].sum()) / total if total else 0.0


def vocabulary_tables(chosen: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """d2t int64 [n]: what is added to a reduced id for the target's; t2d bool [V]: whether a token has one."""
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[chosen] = True
    return {"d2t": chosen - torch.arange(len(chosen)), "t2d": known}


def reduced_ids(chosen: Tensor, vocab_size: int) -> Tensor:
    """int64 [V]: a token's id in the reduced vocabulary, -1 where it has none."""
    ids = torch.full((vocab_size,), -1, dtype=torch.int64)
    ids[chosen] = torch.arange(len(chosen))
    return ids
