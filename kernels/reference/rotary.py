"""Rotary embedding and the write into the paged KV cache, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache, accumulation_dtype


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the halves of the last dimension. x [T, heads, D]; cos, sin [T, D / 2]. Returns x's dtype."""
    wide = x.to(accumulation_dtype(x.dtype))
    first, second = wide.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = wide.new_empty(wide.shape)
    half = first.shape[-1]
    rotated[..., :half] = first * cos - second * sin
    rotated[..., half:] = second * cos + first * sin
    return rotated.to(x.dtype)


def rotary_kv_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: KVCache,
    metadata: AttentionMetadata,
    num_heads: int,
) -> None:
    """See `kernels.ops.RotaryKvWrite`."""
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    rows = metadata.query_start_loc[-1]
    split = qkv[:rows].view(rows, num_heads + 2 * num_kv_heads, head_dim)
    positions = metadata.positions[:rows]
    turned = split[:, : num_heads + num_kv_heads]
    turned.copy_(rotate(turned, cos[positions], sin[positions]))
    slots = metadata.slot_mapping[:rows]
    blocks, offsets = slots // block_size, slots % block_size
    keys, values = split[:, num_heads:].chunk(2, 1)
    for target, scales, vectors in ((cache.keys, cache.key_scales, keys), (cache.values, cache.value_scales, values)):
        if scales is None:
            target[blocks, :, offsets] = vectors
            continue
        codes, scales[blocks, :, offsets] = encode(vectors, target.dtype)
        target.view(torch.uint8)[blocks, :, offsets] = codes.view(torch.uint8)  # not every device indexes float8


def encode(x: Tensor, code_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., D] as codes [..., D] of `code_dtype` and scales fp32 [...], see `kernels.ops.RotaryKvWrite`."""
    limit = 127.0 if code_dtype == torch.int8 else torch.finfo(code_dtype).max
    wide = x.to(accumulation_dtype(x.dtype))
    scales = (wide.abs().amax(-1) / limit).float()
    usable = (scales > 0) & scales.isfinite()
    ratio = (wide / scales.unsqueeze(-1)).where(usable.unsqueeze(-1), 0).clamp(-limit, limit)
    return (ratio.round() if code_dtype == torch.int8 else ratio).to(code_dtype), scales
