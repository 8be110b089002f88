"""The one processor chain: temperature, top-k, top-p, min-p, in this order.

Each filter keeps the logits above a threshold of its own; ties with the last one kept are kept too, so the result does
not depend on the order in which a sort happens to leave equal values. Every row is processed by itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams

SHORT_LIST = 512  # candidates looked at before the whole vocabulary is sorted for a top-p


def keep_threshold(scaled: Tensor, sampling: SamplingParams) -> float:
    """The least scaled logit that survives. scaled: fp32 [V], logits / temperature, one row."""
    threshold = -math.inf
    if 0 < sampling.top_k < len(scaled):
        threshold = float(torch.topk(scaled, sampling.top_k).values[-1])
    if sampling.top_p < 1.0:
        threshold = max(threshold, _top_p_threshold(scaled, threshold, sampling.top_p))
    if sampling.min_p > 0.0:
        threshold = max(threshold, float(scaled.max()) + math.log(sampling.min_p))
    return threshold


def _top_p_threshold(scaled: Tensor, threshold: float, top_p: float) -> float:
    """The logit of the last token of the smallest set whose probability, among those kept so far, reaches top_p."""
    kept = scaled if threshold == -math.inf else scaled[scaled >= threshold]
    total = torch.logsumexp(kept.double(), 0)
    for size in (min(SHORT_LIST, len(kept)), len(kept)):
        top = torch.topk(kept, size).values
        mass = torch.exp(top.double() - total).cumsum(0)
        reached = int((mass < top_p).sum())
        if reached < size:
            return float(top[reached])
    return float(top[-1])  # rounding left the whole mass a hair below top_p
