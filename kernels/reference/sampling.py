"""What is asked of scores beside the draw, in plain torch, a row at a time: peaks, filters, log probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MASS_UNITS = 2.0**40  # in the weight of the likeliest token
SHORT_LISTS = (512, 8192)  # candidates looked at before the whole vocabulary is sorted for a top-p


def peaks(values: Tensor, ids: Tensor, scores: Tensor) -> None:
    """See `kernels.ops.Peaks`."""
    for row, line in enumerate(scores):
        value = line.max()
        values[row] = value
        ids[row] = (line.isnan() if value.isnan() else line == value).nonzero()[0, 0]


def filter_scores(out: Tensor, logits: Tensor, settings: Tensor) -> None:
    """See `kernels.ops.FilterScores`."""
    for line, row, (temperature, top_k, top_p, min_p) in zip(out, logits, settings.tolist(), strict=True):
        if temperature != 0.0:
            torch.div(row, temperature, out=line)
            _keep_top(line, int(top_k), top_p)
            _keep_min_p(line, min_p)


def _keep_top(scores: Tensor, top_k: int, top_p: float) -> None:
    """In scores [V], the k largest stay, then of these the smallest set that holds the share; the rest becomes -inf."""
    threshold = -math.inf
    if 0 < top_k < len(scores):
        threshold = float(torch.topk(scores, top_k).values[-1])
    if top_p < 1.0:
        threshold = max(threshold, _top_p_threshold(scores, threshold, top_p))
    if threshold > -math.inf:
        scores.masked_fill_(scores < threshold, -math.inf)


def _keep_min_p(scores: Tensor, min_p: float) -> None:
    """In scores [V], tokens with at least this share of the most likely one's probability stay."""
    if min_p > 0.0:
        scores.masked_fill_(scores < float(scores.max()) + math.log(min_p), -math.inf)


def _top_p_threshold(scores: Tensor, threshold: float, top_p: float) -> float:
    """The score of the last token of the smallest set whose probability, among those kept so far, reaches top_p."""
    kept = scores if threshold == -math.inf else scores[scores >= threshold]
    peak = kept.max().double()
    total = int(_mass(kept, peak).sum())
    need = min(math.ceil(top_p * total), total)
    for size in (*(size for size in SHORT_LISTS if size < len(kept)), len(kept)):
        top = torch.topk(kept, size).values
        reached = int((_mass(top, peak).cumsum(0) < need).sum())
        if reached < size:
            return float(top[reached])
    raise AssertionError("the whole mass is never less than a share of it")


def _mass(scores: Tensor, peak: Tensor) -> Tensor:
    """Probability in whole units: int64, so that sums are the same in any order."""
    return (torch.exp(scores.double() - peak) * MASS_UNITS).round().long()


def log_probabilities(out: Tensor, top_values: Tensor, top_ids: Tensor, scores: Tensor, token_ids: Tensor) -> None:
    """See `kernels.ops.LogProbabilities`."""
    count = top_ids.shape[1]
    for row, (line, token_id) in enumerate(zip(scores, token_ids.tolist(), strict=True)):
        if token_id < 0:
            continue
        wide = line.double()
        logprobs = wide - torch.logsumexp(wide, 0)
        out[row] = logprobs[token_id]
        top_values[row], top_ids[row] = -math.inf, -1
        ids = _best(line, count)
        top_values[row, : len(ids)] = logprobs[ids].to(top_values.dtype)
        top_ids[row, : len(ids)] = ids


def _best(scores: Tensor, count: int) -> Tensor:
    """The ids of the largest `count` that are above -inf, largest first, ties to the lowest id."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    least = torch.topk(scores, min(count, len(scores))).values[-1]
    candidates = ((scores >= least) & (scores > -math.inf)).nonzero().squeeze(-1)
    return candidates[torch.sort(scores[candidates], descending=True, stable=True).indices[:count]]
