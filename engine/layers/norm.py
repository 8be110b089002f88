"""RMSNorm with the residual sum that precedes it, and the norms of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels.ops import Ops


class RMSNorm:
    """out = rms_norm(residual), after residual += delta where there is a delta."""

    def __init__(self, ops: Ops, config: ModelConfig, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.ops = ops
        self.eps, self.offset = config.rms_norm_eps, config.norm_offset
        self.weight = torch.empty(size, dtype=dtype, device=device)

    def load(self, tensor: Tensor) -> None:
        """Copies the weight [size] in."""
        self.weight.copy_(tensor)

    def forward(self, out: Tensor, residual: Tensor, delta: Tensor | None) -> None:
        if delta is None:
            self.ops.rms_norm(out, residual, self.weight, self.eps, self.offset)
        else:
            self.ops.add_rms_norm(out, residual, delta, self.weight, self.eps, self.offset)

    def in_place(self, x: Tensor, first: int, groups: int) -> None:
        """Norms `groups` groups of columns of x, from column `first` on."""
        self.ops.group_rms_norm(x, first, groups, self.weight, self.eps, self.offset)


class QueryKeyNorm:
    """Norms queries and keys inside the fused qkv buffer: each head by itself, or each projection as a whole."""

    def __init__(self, ops: Ops, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        queries, keys = config.num_attention_heads, config.num_key_value_heads
        whole = config.qk_norm == "projection"
        self.query_groups, self.key_groups = (1, 1) if whole else (queries, keys)
        self.first_key = queries * config.head_dim
        query_size, key_size = (count * config.head_dim if whole else config.head_dim for count in (queries, keys))
        self.query = RMSNorm(ops, config, query_size, dtype, device)
        self.key = RMSNorm(ops, config, key_size, dtype, device)

    def forward(self, qkv: Tensor) -> None:
        self.query.in_place(qkv, 0, self.query_groups)
        self.key.in_place(qkv, self.first_key, self.key_groups)
