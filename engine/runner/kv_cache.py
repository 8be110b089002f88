"""The tensors behind the KV blocks.

Owns the physical caches, as many as a KV group has layers: a block belongs to one group at a time, and in it the k-th
layer of that group has its keys and values in cache k.
"""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.core.kv_groups import kv_groups, layer_places, layers_per_group
from engine.layers.attention import LayerCache


def allocate_caches(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """The cache of every layer, keys and values each [num_blocks, C, B, D]; layers of different groups share them.

    Every page is touched now, so that a pool that was promised is really there and a machine without the memory says so
    at load, not in the middle of an answer.
    """
    shape = (num_blocks, config.num_key_value_heads, block_size, config.head_dim)

    def touched() -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).fill_(0)

    groups = kv_groups(config)
    physical = [LayerCache(touched(), touched()) for _ in range(layers_per_group(groups))]
    return [physical[place] for _, place in layer_places(groups)]
