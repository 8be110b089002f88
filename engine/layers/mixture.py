"""The mixture-of-experts feed-forward block: each row goes through the few gated MLPs that its router picks."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels.ops import Ops


class MixtureMLP:
    """Router [E, H]; the experts' matrices stacked: gate over up [E, 2 I, H], down [E, H, I]."""

    def __init__(self, ops: Ops, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.ops = ops
        self.top_k, self.normalise = config.num_experts_per_token, config.normalise_experts
        experts, hidden, self.inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.router = torch.empty(experts, hidden, dtype=dtype, device=device)
        self.gate_up = torch.empty(experts, self.inner + self.inner, hidden, dtype=dtype, device=device)
        self.down = torch.empty(experts, hidden, self.inner, dtype=dtype, device=device)

    def load(self, name: str, tensor: Tensor) -> None:
        """Takes a tensor by its name within the block. KeyError for one that it does not have."""
        match name.split("."):
            case ["gate", "weight"]:
                self.router.copy_(tensor)
            case ["experts", expert, "gate_proj", "weight"]:
                self.gate_up[int(expert), : self.inner].copy_(tensor)
            case ["experts", expert, "up_proj", "weight"]:
                self.gate_up[int(expert), self.inner :].copy_(tensor)
            case ["experts", expert, "down_proj", "weight"]:
                self.down[int(expert)].copy_(tensor)
            case _:
                raise KeyError(name)

    def forward(self, out: Tensor, x: Tensor) -> None:
        self.ops.mixture_mlp(out, x, self.router, self.gate_up, self.down, self.top_k, self.normalise)
