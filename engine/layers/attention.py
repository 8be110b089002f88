"""Attention over the paged cache: rotate, write keys and values, attend.

Owns no weights: the projections belong to the decoder layer, the cache to the runner.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.ops import AttentionMetadata, Ops


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each [blocks, C, B, D]."""

    keys: Tensor
    values: Tensor


class PagedSelfAttention:
    """Grouped-query self-attention of one layer."""

    def __init__(self, ops: Ops, num_heads: int, head_dim: int, cos: Tensor, sin: Tensor) -> None:
        self.ops = ops
        self.num_heads = num_heads
        self.scale = head_dim**-0.5
        self.cos, self.sin = cos, sin

    def forward(self, out: Tensor, qkv: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
        self.ops.rotary_kv_write(qkv, self.cos, self.sin, cache.keys, cache.values, metadata, self.num_heads)
        self.ops.paged_attention(out, qkv, cache.keys, cache.values, metadata, self.scale)
