"""Rotary embedding and the write into the paged KV cache, in plain torch."""

from __future__ import annotations

from torch import Tensor

from kernels.ops import AttentionMetadata, accumulation_dtype


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
    k_cache: Tensor,
    v_cache: Tensor,
    metadata: AttentionMetadata,
    num_heads: int,
) -> None:
    """See `kernels.ops.RotaryKvWrite`."""
    _, num_kv_heads, block_size, head_dim = k_cache.shape
    rows = metadata.query_start_loc[-1]
    split = qkv[:rows].view(rows, num_heads + 2 * num_kv_heads, head_dim)
    positions = metadata.positions[:rows]
    turned = split[:, : num_heads + num_kv_heads]
    turned.copy_(rotate(turned, cos[positions], sin[positions]))
    slots = metadata.slot_mapping[:rows]
    blocks, offsets = slots // block_size, slots % block_size
    k_cache[blocks, :, offsets] = split[:, num_heads : num_heads + num_kv_heads]
    v_cache[blocks, :, offsets] = split[:, num_heads + num_kv_heads :]
