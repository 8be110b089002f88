"""The tensors behind the KV blocks."""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.layers.attention import LayerCache


def allocate_caches(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """One cache per layer, keys and values each [num_blocks, C, B, D].

    Every page is touched now, so that a pool that was promised is really there and a machine without the memory says so
    at load, not in the middle of an answer.
    """
    shape = (num_blocks, config.num_key_value_heads, block_size, config.head_dim)

    def touched() -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).fill_(0)

    return [LayerCache(touched(), touched()) for _ in range(config.num_hidden_layers)]
