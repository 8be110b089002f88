"""AdamW with fp32 masters and a running average of the weights; the average is what is measured and shipped.

Owns the step and its rate: it rises, stays, and falls over the last passes, which is worth more than as many passes at
one rate. It follows the share of the passes that is made, so that stretches of any length can be continued. Knows no
drafter. Invariant: a step depends on the state and the gradients alone.
Source: Loshchilov and Hutter, arXiv 1711.05101.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.train.drafter_state import TrainingState

_BETAS = (0.9, 0.95)
_EPSILON = 1e-8
_AVERAGED_STEPS = 300  # about how many of the last steps the average is over


@dataclass(frozen=True, slots=True)
class Schedule:
    """rate: after `warm_up` steps of rising, until `falls_from` of all passes are made; from there straight down to
    `least` of it. decay: of weights, a share of the rate. clip: largest gradient norm."""

    rate: float
    warm_up: int = 50
    falls_from: float = 0.6
    least: float = 0.05
    decay: float = 0.01
    clip: float = 1.0

    def rate_at(self, step: int, made: float) -> float:
        """Of step 0, 1, ..., when the share `made` of all passes is made."""
        fallen = min(1.0, max(0.0, made - self.falls_from) / (1 - self.falls_from))
        return self.rate * min(1.0, (step + 1) / self.warm_up) * (1 - (1 - self.least) * fallen)


@torch.no_grad()
def update(state: TrainingState, gradients: Mapping[str, Tensor], schedule: Schedule, made: float) -> float:
    """One step, with the share `made` of all passes behind it; returns the norm of the gradients before clipping."""
    names = sorted(gradients)  # the norm is a sum, and must not depend on who made the dictionary
    grads = [gradients[name] for name in names]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, float((schedule.clip / (norm + 1e-6)).clamp(max=1.0)))
    step = state.place.steps
    rate = schedule.rate_at(step, made)
    weights, average, first, second = (
        [state.tensors[part][name] for name in names] for part in ("weights", "average", "first", "second")
    )
    torch._foreach_lerp_(first, grads, 1 - _BETAS[0])
    torch._foreach_mul_(second, _BETAS[1])
    torch._foreach_addcmul_(second, grads, grads, 1 - _BETAS[1])
    scale = torch._foreach_div(second, 1 - _BETAS[1] ** (step + 1))
    torch._foreach_sqrt_(scale)
    torch._foreach_add_(scale, _EPSILON)
    matrices = [weight for weight in weights if weight.dim() > 1]  # norms are not drawn to zero
    torch._foreach_mul_(matrices, 1 - rate * schedule.decay)
    torch._foreach_addcdiv_(weights, first, scale, -rate / (1 - _BETAS[0] ** (step + 1)))
    torch._foreach_lerp_(average, weights, max(1 / _AVERAGED_STEPS, 2 / (step + 3)))
    return float(norm)
