"""Embeddings: a prompt's hidden states after the final norm, pooled into one vector of length 1.

Owns the sums of prompts whose mean is wanted while their chunks are computed. Knows nothing of the model or of
requests. Invariant: a vector has the same bits however its prompt was cut into chunks and whatever else was in the
batch: rows are added one by one, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.core.step import ScheduledRequest, SchedulerOutput
from kernels.ops import accumulation_dtype


@dataclass(frozen=True, slots=True)
class PooledStates:
    """By request id: the vectors [H] that a step completed, in fp32, and why others have none."""

    vectors: dict[str, list[float]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


class Pooler:
    """Pools the rows of steps."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    @torch.inference_mode()
    def pool(self, plan: SchedulerOutput, normed: Tensor) -> PooledStates:
        """What the step just run completes. normed: [T, H], its rows behind the final norm, in the plan's order."""
        found = PooledStates()
        end = 0
        for request in plan.requests:
            start, end = end, end + len(request.token_ids)
            if not request.pooling:
                continue
            state = self._state(request, normed[start:end])
            if not request.completes_pooling:
                continue
            length = float(torch.linalg.vector_norm(state, dtype=torch.float64))  # whose squares do not overflow
            if math.isfinite(length) and length > 0:
                found.vectors[request.request_id] = state.double().div(length).float().tolist()
            else:
                found.faults[request.request_id] = (
                    f"the pooled hidden state has the length {length}; the model's weights or its dtype are at fault"
                )
        return found

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the sums of requests that ended or must start over."""
        for request_id in request_ids:
            self._sums.pop(request_id, None)

    def _state(self, request: ScheduledRequest, rows: Tensor) -> Tensor:
        """The last row, or the sum of all rows so far (of which the mean has the direction); [H], fp32 or fp64."""
        wide = accumulation_dtype(rows.dtype)
        if request.pooling == "last":
            return rows[-1].to(wide)
        if request.first:
            self._sums[request.request_id] = rows.new_zeros(rows.shape[1], dtype=wide)
        total = self._sums[request.request_id]
        for row in rows:
            total.add_(row)
        return total
