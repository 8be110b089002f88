"""Peaks, filters and log probabilities in C++: a row at a time, and without sorting it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import function, pointer

_peaks = function("pz_peaks", 3, 2)
_filter_scores = function("pz_filter_scores", 3, 2)
_log_probabilities = function("pz_log_probabilities", 5, 3)


def peaks(values: Tensor, ids: Tensor, scores: Tensor) -> None:
    """See `kernels.ops.Peaks`."""
    _peaks(pointer(values, torch.float32), pointer(ids, torch.int64), pointer(scores, torch.float32), *scores.shape)


def filter_scores(out: Tensor, logits: Tensor, settings: Tensor) -> None:
    """See `kernels.ops.FilterScores`."""
    _filter_scores(
        pointer(out, torch.float32), pointer(logits, torch.float32), pointer(settings, torch.float64), *logits.shape
    )


def log_probabilities(out: Tensor, top_values: Tensor, top_ids: Tensor, scores: Tensor, token_ids: Tensor) -> None:
    """See `kernels.ops.LogProbabilities`."""
    _log_probabilities(
        pointer(out, torch.float32),
        pointer(top_values, torch.float32),
        pointer(top_ids, torch.int64),
        pointer(scores, torch.float32),
        pointer(token_ids, torch.int64),
        *scores.shape,
        top_ids.shape[1],
    )
