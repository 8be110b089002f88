"""`kernels.ops.PagedAttention` in C++: each row over its own keys, no gathering, no padding."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, cache_pointers, pointer
from kernels.ops import AttentionMetadata, KVCache

_attention = by_dtype("pz_attention", 9, 8, 2)


def paged_attention(
    out: Tensor,
    qkv: Tensor,
    cache: KVCache,
    metadata: AttentionMetadata,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> None:
    """See `kernels.ops.PagedAttention`."""
    dtype = qkv.dtype
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    _attention[dtype](
        pointer(out, dtype),
        pointer(qkv, dtype),
        *cache_pointers(cache, dtype),
        pointer(metadata.block_tables, torch.int32),
        pointer(metadata.row_request, torch.int32),
        pointer(metadata.positions, torch.int64),
        qkv.shape[0],
        out.shape[1] // head_dim,
        num_kv_heads,
        block_size,
        head_dim,
        metadata.block_tables.shape[1],
        qkv.shape[1],
        window,
        scale,
        soft_cap,
    )
