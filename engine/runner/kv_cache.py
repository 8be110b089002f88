"""The tensors behind the KV blocks.

Owns the physical caches, as many as a KV group has layers: a block belongs to one group at a time, and in it the k-th
layer of that group has its keys and values in cache k.
Invariant: its bytes are those that `engine.core.sizing` plans, scales included.
"""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.core.kv_groups import kv_groups, layer_places, layers_per_group
from kernels.ops import KVCache
from kernels.pages import prefer_huge_pages


def allocate_caches(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, *, coded: bool
) -> list[KVCache]:
    """The cache of every layer, keys and values each [num_blocks, C, B, D]; layers of different groups share them.

    dtype: of keys and values; with `coded` it is that of their codes, and there are scales.
    Every page is touched now, so that a pool that was promised is really there and a machine without the memory says so
    at load, not in the middle of an answer.
    """
    vectors = (num_blocks, config.num_key_value_heads, block_size)

    def cache() -> KVCache:
        keys, values = (touched((*vectors, config.head_dim), dtype, device) for _ in range(2))
        if not coded:
            return KVCache(keys, values)
        return KVCache(keys, values, touched(vectors, torch.float32, device), touched(vectors, torch.float32, device))

    groups = kv_groups(config)
    physical = [cache() for _ in range(layers_per_group(groups))]
    return [physical[place] for _, place in layer_places(groups)]


def allocate_draft_caches(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[KVCache]:
    """The caches of a drafter, which lie at the block ids of its target: one for each layer, each as above.

    Layers with a window keep all keys: the target's full-attention layers hold these blocks anyway.
    """
    shape = (num_blocks, config.num_key_value_heads, block_size, config.head_dim)
    return [
        KVCache(touched(shape, dtype, device), touched(shape, dtype, device)) for _ in range(config.num_hidden_layers)
    ]


def touched(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose pages are all there."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    prefer_huge_pages(tensor)  # a request's blocks lie all over the pool
    return tensor.fill_(0)
