"""Medusa heads in training: each predicts a token further on from the target's last hidden state alone.

Owns the weights' names (the public layout), their first values and the pass. Knows neither data nor optimiser.
Invariant: head i takes the state of a position and predicts the token i + 2 on: the next one is the target's own.
Source: Cai et al., Medusa, arXiv 2401.10774.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.config import ModelConfig
from engine.train.drafter_batches import Batch
from engine.train.drafter_target import Target

NUM_HEADS = 3


class MedusaDrafter:
    """The functions of the heads. lead: how many tokens further on than a base position's step says is predicted."""

    kind = "medusa"
    lead = 1

    def __init__(self, config: ModelConfig, longest: int, device: torch.device) -> None:
        del longest, device  # heads know no positions
        self.config = config
        self.depth = NUM_HEADS

    def initial(self, target: Target, chosen: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """fp32 first values: blocks that pass their input on, heads from the target's rows."""
        del generator
        hidden = target.config.hidden_size
        head = target.head[chosen.to(target.device)].float().cpu() * target.config.logits_scale
        weights = {}
        for index in range(NUM_HEADS):
            weights[f"medusa_head.{index}.0.linear.weight"] = torch.zeros(hidden, hidden)
            weights[f"medusa_head.{index}.0.linear.bias"] = torch.zeros(hidden)
            weights[f"medusa_head.{index}.1.weight"] = head.clone()
        return weights

    def unroll(self, weights: Mapping[str, Tensor], target: Target, batch: Batch, steps: int) -> Iterator[Tensor]:
        """The target's states [B, L - s - 1, H] for head s: that at position i predicts token i + s + 2."""
        del weights, target
        length = batch.final.shape[1]
        for step in range(min(steps, NUM_HEADS)):
            yield batch.final[:, : max(0, length - step - 1)]

    def logits(self, weights: Mapping[str, Tensor], rows: Tensor, step: int) -> Tensor:
        """[R, n] of states [R, H] by head `step`."""
        name = f"medusa_head.{step}"
        inner = F.linear(rows, weights[f"{name}.0.linear.weight"], weights[f"{name}.0.linear.bias"])
        return F.linear(rows + F.silu(inner), weights[f"{name}.1.weight"])
