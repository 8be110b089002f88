"""The one processor chain, used by every draw: what happens to a row of logits before the temperature, in which order.

A row is processed by itself, in a copy that belongs to the caller. What comes behind, temperature and filters, is
`engine.sample.filters`.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from engine.sample.penalties import (
    add_bias,
    forbid_bad_words,
    penalise_continuations,
    penalise_presence_and_frequency,
    penalise_repetition,
)
from engine.sample.row import SamplingRow

BYTE_BITS, BYTES = 8, 256


def apply_grammar(logits: Tensor, row: SamplingRow) -> None:
    """Tokens that the grammar does not allow here cannot come."""
    if row.allowed:
        packed = torch.frombuffer(bytearray(row.allowed), dtype=torch.uint8).to(logits.device)
        spread = _bits_as_scores(logits.dtype, logits.device).index_select(0, packed.int())
        logits.add_(spread.view(-1)[: len(logits)])  # several times as fast as a mask of booleans


@cache
def _bits_as_scores(dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each byte what its bits, lowest first, add to the logits [256, 8]: -inf where a bit is not set."""
    bits = torch.arange(BYTES).unsqueeze(1) >> torch.arange(BYTE_BITS) & 1
    return torch.zeros(BYTES, BYTE_BITS, dtype=dtype).masked_fill_(bits == 0, -math.inf).to(device)


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


def is_adjusted(row: SamplingRow) -> bool:
    """Whether anything but the temperature and the filters touches this row."""
    sampling = row.sampling
    changes = sampling.needs_token_ids or sampling.logit_bias or sampling.allowed_token_ids
    return bool(changes or row.allowed or row.end_token_ids)


def adjust(logits: Tensor, row: SamplingRow) -> None:
    """Makes of a row's logits [V], in place, what a greedy row takes the best of."""
    for processor in ADJUSTMENTS:
        processor(logits, row)
