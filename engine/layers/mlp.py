"""The gated feed-forward block: down(activation(gate(x)) * up(x))."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.linear import ColumnParallelLinear, RowParallelLinear
from kernels.ops import Ops


class GatedMLP:
    """Gate and up share one product."""

    def __init__(self, ops: Ops, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.activate = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul}[config.activation]
        inner = config.intermediate_size
        self.gate_up = ColumnParallelLinear(
            ops, config.hidden_size, (inner, inner), bias=config.mlp_bias, dtype=dtype, device=device
        )
        self.down = RowParallelLinear(ops, inner, config.hidden_size, bias=config.mlp_bias, dtype=dtype, device=device)

    def forward(self, out: Tensor, x: Tensor, gate_up: Tensor, inner: Tensor) -> None:
        """gate_up [T, 2 I] and inner [T, I] are scratch buffers."""
        self.gate_up.forward(gate_up, x)
        self.activate(inner, gate_up)
        self.down.forward(out, inner)
