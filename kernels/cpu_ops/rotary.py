"""`kernels.ops.RotaryKvWrite` in C++."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, cache_pointers, pointer
from kernels.ops import AttentionMetadata, KVCache

_rotary = by_dtype("pz_rotary", 9, 5)


def rotary_kv_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: KVCache,
    metadata: AttentionMetadata,
    num_heads: int,
) -> None:
    """See `kernels.ops.RotaryKvWrite`."""
    dtype = qkv.dtype
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    _rotary[dtype](
        pointer(qkv, dtype),
        pointer(cos, torch.float32),
        pointer(sin, torch.float32),
        *cache_pointers(cache, dtype),
        pointer(metadata.positions, torch.int64),
        pointer(metadata.slot_mapping, torch.int64),
        qkv.shape[0],
        num_heads,
        num_kv_heads,
        block_size,
        head_dim,
    )
