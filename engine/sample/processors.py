"""The one processor chain, used by every draw: what happens to a row of logits before the noise, and in which order.

A row is processed by itself. Invariant: the caller's logits are never written to, since log probabilities are taken
from them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.sample.filters import exclude_top_choices, keep_min_p, keep_top, keep_typical
from engine.sample.penalties import (
    add_bias,
    forbid_bad_words,
    penalise_continuations,
    penalise_presence_and_frequency,
    penalise_repetition,
)
from engine.sample.row import SamplingRow

WORD_BITS = 8


def apply_grammar(logits: Tensor, row: SamplingRow) -> None:
    """Tokens that the grammar does not allow here cannot come."""
    if row.allowed:
        packed = torch.frombuffer(bytearray(row.allowed), dtype=torch.uint8)
        bits = packed.unsqueeze(1).bitwise_right_shift(torch.arange(WORD_BITS, dtype=torch.uint8)).bitwise_and_(1)
        allowed = bits.view(-1)[: len(logits)].bool().to(logits.device)
        logits.masked_fill_(~allowed, -math.inf)


def keep_allowed(logits: Tensor, row: SamplingRow) -> None:
    """allowed_token_ids: no other token can come."""
    if row.sampling.allowed_token_ids:
        ids = torch.tensor(row.sampling.allowed_token_ids, dtype=torch.int64, device=logits.device)
        kept = logits[ids]
        logits.fill_(-math.inf)
        logits[ids] = kept


def hold_back_ends(logits: Tensor, row: SamplingRow) -> None:
    """min_tokens: tokens that end the answer cannot come yet, unless a grammar leaves nothing else."""
    if row.end_token_ids and row.position - row.num_prompt_tokens < row.sampling.min_tokens:
        ends = torch.tensor(list(row.end_token_ids), dtype=torch.int64, device=logits.device)
        kept = logits[ends]
        logits[ends] = -math.inf
        if row.allowed and float(logits.max()) == -math.inf:
            logits[ends] = kept


ADJUSTMENTS = (
    add_bias,
    forbid_bad_words,
    penalise_repetition,
    penalise_presence_and_frequency,
    penalise_continuations,
    apply_grammar,
    keep_allowed,
    hold_back_ends,
)
FILTERS = (keep_top, keep_typical, keep_min_p, exclude_top_choices)


def is_adjusted(row: SamplingRow) -> bool:
    """Whether anything but the temperature and the filters touches this row."""
    sampling = row.sampling
    changes = sampling.needs_token_ids or sampling.logit_bias or sampling.allowed_token_ids
    return bool(changes or row.allowed or row.end_token_ids)


def adjust(logits: Tensor, row: SamplingRow) -> Tensor:
    """The row's logits [V] after everything that comes before the temperature: what a greedy row takes the best of."""
    if not is_adjusted(row):
        return logits
    adjusted = logits.clone()
    for processor in ADJUSTMENTS:
        processor(adjusted, row)
    return adjusted


def filter_scores(adjusted: Tensor, row: SamplingRow) -> Tensor:
    """A new row [V]: adjusted logits over the temperature, -inf for the tokens that the filters drop."""
    scores = adjusted / row.sampling.temperature
    for processor in FILTERS:
        processor(scores, row)
    return scores
