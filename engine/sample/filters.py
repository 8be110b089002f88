"""The filters, which keep only likely tokens: what the others' scores become is -inf.

Their order is top_k, top_p, typical_p, min_p, xtc, and each counts the probability of what the ones before it left.
Most rows are done by the op `filter_scores`; typical_p and xtc, which few ask for, are computed here, a row at a time.
Ties with the last token kept are kept too, so the result does not depend on the order in which a sort leaves equal
values. top-p: arXiv 1904.09751; typical: arXiv 2202.00666; min-p: arXiv 2407.01082; XTC ("exclude top choices"): its
author's original, text-generation-webui pull request 6335.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.sample.row import SamplingRow
from kernels.noise import Stream, uniform
from kernels.ops import Ops

SHORT_LISTS = (512, 8192)  # candidates looked at before the whole vocabulary is sorted for a typical-p
PASSED_OVER = (0.0, 0.0, 1.0, 0.0)  # the settings of a row that the op leaves alone


def is_filtered(sampling: SamplingParams) -> bool:
    """Whether the scores that are drawn from differ from the adjusted logits."""
    return (
        sampling.temperature != 1.0
        or sampling.top_k > 0
        or sampling.top_p < 1.0
        or sampling.min_p > 0.0
        or sampling.typical_p < 1.0
        or sampling.xtc_probability > 0.0
    )


def filter_rows(out: Tensor, logits: Tensor, rows: Mapping[int, SamplingRow], ops: Ops) -> None:
    """out [R, V] at the indices of `rows` = logits over the temperature, -inf for the tokens that the filters drop.

    Other rows of `out` stay as they are. `out` may be `logits`.
    """
    if not rows:
        return
    settings = [PASSED_OVER] * len(logits)
    for index, row in rows.items():
        sampling = row.sampling
        min_p = sampling.min_p if sampling.typical_p >= 1.0 else 0.0  # else it comes behind typical_p
        settings[index] = (sampling.temperature, float(sampling.top_k), sampling.top_p, min_p)
    _apply(out, logits, settings, ops)
    for index, row in rows.items():
        if row.sampling.typical_p < 1.0:
            _keep_typical(out[index], row.sampling.typical_p)
            if row.sampling.min_p > 0.0:
                line = out[index : index + 1]
                _apply(line, line, [(1.0, 0.0, 1.0, row.sampling.min_p)], ops)
        if row.sampling.xtc_probability > 0.0:
            _exclude_top_choices(out[index], row)


def _apply(out: Tensor, logits: Tensor, settings: list[tuple[float, float, float, float]], ops: Ops) -> None:
    numbers = array("d", [number for one in settings for number in one])
    ops.filter_scores(out, logits, torch.frombuffer(numbers, dtype=torch.float64).view(-1, 4).to(logits.device))


def _keep_typical(scores: Tensor, typical_p: float) -> None:
    """The tokens whose surprise is nearest to the expected one, the smallest set that holds the share."""
    kept = (scores > -math.inf).nonzero().squeeze(-1)
    surprise = -torch.log_softmax(scores[kept].double(), 0)
    chance = torch.exp(-surprise)
    distance = (surprise - (chance * surprise).sum()).abs()
    for size in (*(size for size in SHORT_LISTS if size < len(kept)), len(kept)):
        nearest = torch.topk(distance, size, largest=False)
        reached = int((chance[nearest.indices].cumsum(0) < typical_p).sum())
        if reached < size:
            break
    farthest = nearest.values[min(reached, size - 1)]
    scores[kept[distance > farthest]] = -math.inf


def _exclude_top_choices(scores: Tensor, row: SamplingRow) -> None:
    """With xtc_probability, of the tokens that reach xtc_threshold only the least likely stays."""
    sampling = row.sampling
    if uniform(*row.address(Stream.XTC)) >= sampling.xtc_probability:
        return
    likely = torch.softmax(scores.double(), 0) >= sampling.xtc_threshold
    if int(likely.sum()) > 1:
        least = scores[likely].min()
        scores.masked_fill_(likely & (scores > least), -math.inf)
