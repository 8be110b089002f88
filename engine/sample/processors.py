"""The one processor chain, used by every draw: what happens to rows of logits before the temperature, in which order.

Each processor takes all rows at once, in a copy that belongs to the caller; no row's result depends on the others. What
comes behind, temperature and filters, is `engine.sample.filters`.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from engine.sample.penalties import (
    Rows,
    add_bias,
    forbid_bad_words,
    penalise_continuations,
    penalise_presence_and_frequency,
    penalise_repetition,
)
from engine.sample.row import SamplingRow

BYTE_BITS, BYTES = 8, 256


def apply_grammar(scores: Tensor, rows: Rows) -> None:
    """Tokens that the grammar does not allow here cannot come."""
    for index, row in rows.items():
        if row.allowed:
            packed = torch.frombuffer(bytearray(row.allowed), dtype=torch.uint8).to(scores.device)
            spread = _bits_as_scores(scores.dtype, scores.device).index_select(0, packed.int())
            scores[index].add_(spread.view(-1)[: scores.shape[1]])  # several times as fast as a mask of booleans


@cache
def _bits_as_scores(dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each byte what its bits, lowest first, add to the logits [256, 8]: -inf where a bit is not set."""
    bits = torch.arange(BYTES).unsqueeze(1) >> torch.arange(BYTE_BITS) & 1
    return torch.zeros(BYTES, BYTE_BITS, dtype=dtype).masked_fill_(bits == 0, -math.inf).to(device)


def keep_allowed(scores: Tensor, rows: Rows) -> None:
    """allowed_token_ids: no other token can come."""
    for index, row in rows.items():
        if row.sampling.allowed_token_ids:
            ids = torch.tensor(row.sampling.allowed_token_ids, dtype=torch.int64, device=scores.device)
            kept = scores[index][ids]
            scores[index].fill_(-math.inf)
            scores[index][ids] = kept


def hold_back_ends(scores: Tensor, rows: Rows) -> None:
    """min_tokens: tokens that end the answer cannot come yet, unless a grammar leaves nothing else."""
    for index, row in rows.items():
        if row.end_token_ids and row.position - row.num_prompt_tokens < row.sampling.min_tokens:
            logits, ends = scores[index], torch.tensor(list(row.end_token_ids), dtype=torch.int64, device=scores.device)
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


def adjust(scores: Tensor, rows: Rows) -> None:
    """Makes of the rows' logits, in place, what a greedy row takes the best of. scores: [S, V], one after the other."""
    for processor in ADJUSTMENTS:
        processor(scores, rows)
