"""Attention over the paged cache: rotate, write keys and values, attend.

Owns no weights: the projections belong to the decoder layer, the cache to the runner.
"""

from __future__ import annotations

from torch import Tensor

from engine.config import ModelConfig
from engine.layers.rotary import RotaryTables
from kernels.ops import AttentionMetadata, KVCache, Ops


class PagedSelfAttention:
    """Grouped-query self-attention of layer `index`."""

    def __init__(self, ops: Ops, config: ModelConfig, index: int, rotary: RotaryTables) -> None:
        self.ops = ops
        self.num_heads = config.num_attention_heads
        self.scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        self.window = config.layer_windows[index] if config.layer_windows else 0
        self.soft_cap = config.attention_soft_cap
        self.cos, self.sin = rotary.of_layer(index)

    def forward(self, out: Tensor, qkv: Tensor, cache: KVCache, metadata: AttentionMetadata) -> None:
        self.ops.rotary_kv_write(qkv, self.cos, self.sin, cache, metadata, self.num_heads)
        self.ops.paged_attention(out, qkv, cache, metadata, self.scale, self.window, self.soft_cap)
