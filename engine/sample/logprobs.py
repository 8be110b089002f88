"""Log probabilities of one row: the token's own, and the most likely ones beside it.

Taken from the raw logits, or from the processed scores where a request says so. Row by row, so that they are the same
bits in any batch; ties go to the lowest id.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.core.outputs import Logprobs


def add_logprobs(target: Logprobs, logits: Tensor, token_id: int, num_top: int) -> None:
    """Appends the entry of one token that was drawn from, or stood behind, one row of logits [V]."""
    logprobs = torch.log_softmax(logits, 0)
    target.logprobs.append(float(logprobs[token_id]))
    ids = _best(logprobs, num_top)
    target.top_token_ids.append(ids)
    target.top_logprobs.append(logprobs[ids].tolist())


def _best(logprobs: Tensor, count: int) -> list[int]:
    """The ids of the largest `count`, largest first; tokens that are out of the question are left out."""
    if count == 0:
        return []
    least = torch.topk(logprobs, min(count, len(logprobs))).values[-1]
    candidates = ((logprobs >= least) & (logprobs > -math.inf)).nonzero().squeeze(-1)
    order = torch.sort(logprobs[candidates], descending=True, stable=True).indices[:count]
    ids: list[int] = candidates[order].tolist()
    return ids
