"""The mixture-of-experts feed-forward block: each row goes through the few gated MLPs that its router picks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.checkpoint import CheckpointError
from engine.config import ModelConfig
from engine.layers.linear import StackedWeight, Weight
from kernels.ops import Ops


class MixtureMLP:
    """Router [E, H], always numbers; of each expert gate over up [2 I, H], and down [H, I]."""

    def __init__(self, ops: Ops, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.ops = ops
        self.top_k, self.normalise = config.num_experts_per_token, config.normalise_experts
        experts, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.router = torch.empty(experts, hidden, dtype=dtype, device=device)
        self.gate_up = [StackedWeight(ops, hidden, (inner, inner), dtype, device) for _ in range(experts)]
        self.down = [StackedWeight(ops, inner, (hidden,), dtype, device) for _ in range(experts)]

    def load(self, name: str, weight: Weight) -> None:
        """Takes a tensor by its name within the block. KeyError for one that it does not have."""
        match name.split("."):
            case ["gate", "weight"]:
                assert isinstance(weight, Tensor)
                self.router.copy_(weight)
            case ["experts", expert, ("gate_proj" | "up_proj") as part, "weight"]:
                stacked = self.gate_up[int(expert)]
                stacked.load_part(int(part == "up_proj"), weight)
                if len(stacked.pieces) > 1:
                    raise CheckpointError(
                        f"expert {expert}: gate_proj and up_proj have different formats or orders of inputs, and are "
                        "multiplied as one matrix; choose a version of the model where they agree"
                    )
            case ["experts", expert, "down_proj", "weight"]:
                self.down[int(expert)].load_part(0, weight)
            case _:
                raise KeyError(name)

    def forward(self, out: Tensor, x: Tensor) -> None:
        gate_up = [expert.whole() for expert in self.gate_up]
        down = [expert.whole() for expert in self.down]
        self.ops.mixture_mlp(out, x, self.router, gate_up, down, self.top_k, self.normalise)

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded."""
        yield self.router
        for expert in (*self.gate_up, *self.down):
            yield from expert.weights()
