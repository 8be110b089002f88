"""Draws one token per row of logits.

Greedy rows take the largest logit that the processor chain leaves. Others are drawn by the op `draw`: the largest of
score + Gumbel noise, which is an exact draw from the softmax of the scores. Ties go to the lowest id.
Invariant: a row's token depends on its logits, its `SamplingRow`, and on nothing else; a row that cannot be drawn has a
fault of its own and spoils no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.outputs import Logprobs
from engine.sample.logprobs import add_logprobs
from engine.sample.processors import adjust, filter_scores, is_adjusted
from engine.sample.row import SamplingRow
from kernels.noise import Stream
from kernels.ops import Draw

NO_TOKEN_LEFT = (
    "no token is left to draw: bad_words, logit_bias, allowed_token_ids, min_tokens and the grammar forbid all of them"
)
SIGN_BIT, WRAP = 1 << 63, 1 << 64


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row's token; `fault` says why there is none. logprobs: where asked for, one entry."""

    token_id: int
    fault: str | None = None
    logprobs: Logprobs | None = None


def sample(logits: Tensor, rows: Sequence[SamplingRow], draw: Draw) -> list[Drawn]:
    """One outcome per row. logits: fp32 or fp64 [len(rows) or more, V]; rows past len(rows) are padding."""
    top = logits[: len(rows)].max(dim=-1)
    peaks: list[float] = top.values.tolist()
    drawn = [_greedy(token_id, peak) for token_id, peak in zip(top.indices.tolist(), peaks, strict=True)]
    processed = {index: logits[index] for index in range(len(rows)) if drawn[index].fault is None}
    for index in processed:
        if is_adjusted(rows[index]):
            adjusted = processed[index] = adjust(logits[index], rows[index])
            best = adjusted.max(dim=-1)
            drawn[index] = _greedy(int(best.indices), float(best.values))
    noisy = [i for i in processed if drawn[i].fault is None and not rows[i].sampling.greedy]
    for index in noisy:
        processed[index] = filter_scores(processed[index], rows[index])
    if noisy:
        chosen = _draw(torch.stack([processed[index] for index in noisy]), [rows[index] for index in noisy], draw)
        for index, token_id in zip(noisy, chosen, strict=True):
            drawn[index] = Drawn(token_id)
    return [
        _with_logprobs(one, row, logits[index] if row.sampling.logprobs_mode == "raw" else processed[index])
        if one.fault is None and row.sampling.logprobs is not None
        else one
        for index, (one, row) in enumerate(zip(drawn, rows, strict=True))
    ]


def _with_logprobs(drawn: Drawn, row: SamplingRow, logits: Tensor) -> Drawn:
    found = Logprobs()
    add_logprobs(found, logits, drawn.token_id, row.sampling.logprobs or 0)
    return Drawn(drawn.token_id, logprobs=found)


def _greedy(token_id: int, peak: float) -> Drawn:
    """The largest logit's token, or the fault of a row that has no finite one."""
    if math.isfinite(peak):
        return Drawn(token_id)
    if peak == -math.inf:
        return Drawn(token_id, NO_TOKEN_LEFT)
    return Drawn(token_id, f"the model's largest logit is {peak}; its weights or its dtype are at fault")


def _draw(scores: Tensor, rows: Sequence[SamplingRow], draw: Draw) -> list[int]:
    """Tokens of rows with finite scores [len(rows), V]."""
    addresses = [row.address(Stream.TARGET) for row in rows]
    signed = [[seed - WRAP if seed >= SIGN_BIT else seed, *rest] for seed, *rest in addresses]
    out = torch.empty(len(rows), dtype=torch.int64, device=scores.device)
    draw(out, scores, torch.tensor(signed, dtype=torch.int64, device=scores.device))
    chosen: list[int] = out.tolist()
    return chosen
