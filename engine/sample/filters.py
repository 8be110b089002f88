"""The processors that keep only likely tokens, each for one row of logits over temperature, in place: the rest is -inf.

Each counts the probability of what the ones before it left. Ties with the last token kept are kept too, so the result
does not depend on the order in which a sort leaves equal values. top-p: arXiv 1904.09751; typical: arXiv 2202.00666;
min-p: arXiv 2407.01082; XTC ("exclude top choices"): its author's original, text-generation-webui pull request 6335.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.sample.row import SamplingRow
from kernels.noise import Stream, uniform

SHORT_LISTS = (512, 8192)  # candidates looked at before the whole vocabulary is sorted for a top-p


def keep_top(scores: Tensor, row: SamplingRow) -> None:
    """top_k and top_p: the k largest, then of these the smallest set that holds the share."""
    top_k, top_p = row.sampling.top_k, row.sampling.top_p
    threshold = -math.inf
    if 0 < top_k < len(scores):
        threshold = float(torch.topk(scores, top_k).values[-1])
    if top_p < 1.0:
        threshold = max(threshold, _top_p_threshold(scores, threshold, top_p))
    if threshold > -math.inf:
        _drop(scores, scores < threshold)


def _top_p_threshold(scores: Tensor, threshold: float, top_p: float) -> float:
    """The score of the last token of the smallest set whose probability, among those kept so far, reaches top_p."""
    kept = scores if threshold == -math.inf else scores[scores >= threshold]
    total = torch.logsumexp(kept.double(), 0)
    for size in (*(size for size in SHORT_LISTS if size < len(kept)), len(kept)):
        top = torch.topk(kept, size).values
        mass = torch.exp(top.double() - total).cumsum(0)
        reached = int((mass < top_p).sum())
        if reached < size:
            return float(top[reached])
    return float(top[-1])  # rounding left the whole mass a hair below top_p


def keep_typical(scores: Tensor, row: SamplingRow) -> None:
    """typical_p: the tokens whose surprise is nearest to the expected one, the smallest set that holds the share."""
    if row.sampling.typical_p >= 1.0:
        return
    kept = (scores > -math.inf).nonzero().squeeze(-1)
    surprise = -torch.log_softmax(scores[kept].double(), 0)
    chance = torch.exp(-surprise)
    distance = (surprise - (chance * surprise).sum()).abs()
    order = torch.argsort(distance, stable=True)
    reached = int((chance[order].cumsum(0) < row.sampling.typical_p).sum())
    farthest = distance[order[min(reached, len(order) - 1)]]
    scores[kept[distance > farthest]] = -math.inf


def keep_min_p(scores: Tensor, row: SamplingRow) -> None:
    """min_p: tokens with at least this share of the most likely one's probability."""
    if row.sampling.min_p > 0.0:
        _drop(scores, scores < float(scores.max()) + math.log(row.sampling.min_p))


def exclude_top_choices(scores: Tensor, row: SamplingRow) -> None:
    """xtc_*: with xtc_probability, of the tokens that reach xtc_threshold only the least likely stays."""
    sampling = row.sampling
    if sampling.xtc_probability == 0.0 or uniform(*row.address(Stream.XTC)) >= sampling.xtc_probability:
        return
    likely = torch.softmax(scores.double(), 0) >= sampling.xtc_threshold
    if int(likely.sum()) > 1:
        least = scores[likely].min()
        _drop(scores, likely & (scores > least))


def _drop(scores: Tensor, unwanted: Tensor) -> None:
    scores.masked_fill_(unwanted, -math.inf)
