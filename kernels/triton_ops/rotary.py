"""Rotary embedding and the write into the paged KV cache in Triton: a program some heads of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache
from kernels.triton_ops.device import check_contiguous, check_dtypes

HEADS_AT_ONCE = 4  # of a program


@triton.jit
def _e4m3(x: tl.tensor) -> tl.tensor:
    """x, at most 448 in size, as the byte of the nearest float8_e4m3fn, ties to even.

    By its bits, since older GPUs have no such conversion, and the interpreter's rounds halves up.
    """
    bits = tl.abs(x).to(tl.int32, bitcast=True)
    # A normal number keeps 3 of the 23 bits behind the point, and the bias of its exponent falls from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 codes are multiples of 2^-9, which is what the last bit of a number from 2^14 on stands for.
    subnormal = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) & 0xF
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (tl.where(tl.abs(x) < 0.015625, subnormal, normal) | sign).to(tl.uint8)


@triton.jit
def _code(x: tl.tensor, scale: tl.tensor, usable: tl.tensor, E4M3: tl.constexpr) -> tl.tensor:
    """The codes of x [heads, n], whose scales [heads, 1] may be unusable: then all are 0."""
    ratio = tl.where(usable, tl.div_rn(x, tl.where(usable, scale, 1.0)), 0.0)
    if E4M3:
        codes = _e4m3(tl.minimum(tl.maximum(ratio, -448.0), 448.0))
    else:
        # Adding 1.5 * 2^23 rounds to an integer; the limit matters where the scale is subnormal.
        whole = (tl.minimum(tl.maximum(ratio, -127.0), 127.0) + 12582912.0) - 12582912.0
        codes = whole.to(tl.int32).to(tl.int8)
    return codes


@triton.jit
def _put(
    cache: tl.tensor,
    scales: tl.tensor,
    place: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    written: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    CODED: tl.constexpr,
    E4M3: tl.constexpr,
) -> None:
    """Writes vectors, given in halves [heads, HALF], to the places [heads] of the cache where `written` [heads]."""
    i = tl.arange(0, HALF)
    target = cache + place[:, None] * HEAD_DIM + i[None, :]
    mask = written[:, None] & (i < HEAD_DIM // 2)[None, :]
    if CODED:
        one, two = first.to(tl.float32), second.to(tl.float32)
        # Sizes are compared as integers, where a NaN is the largest.
        sizes = tl.maximum(tl.abs(one).to(tl.int32, bitcast=True), tl.abs(two).to(tl.int32, bitcast=True))
        scale = tl.div_rn(tl.max(sizes, 1).to(tl.float32, bitcast=True), 448.0 if E4M3 else 127.0)
        tl.store(scales + place, scale, mask=written)
        usable = ((scale > 0.0) & (scale < float("inf")))[:, None]
        tl.store(target, _code(one, scale[:, None], usable, E4M3), mask=mask)
        tl.store(target + HEAD_DIM // 2, _code(two, scale[:, None], usable, E4M3), mask=mask)
    else:
        tl.store(target, first, mask=mask)
        tl.store(target + HEAD_DIM // 2, second, mask=mask)


@triton.jit
def _rotary_kv_write(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    positions: tl.tensor,
    slot_mapping: tl.tensor,
    stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_AT_ONCE: tl.constexpr,
    CODED: tl.constexpr,
    E4M3: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    first_head = tl.program_id(1) * HEADS_AT_ONCE
    slot = tl.load(slot_mapping + row).to(tl.int64)
    if slot < 0:
        return
    half: tl.constexpr = HEAD_DIM // 2
    head, i = first_head + tl.arange(0, HEADS_AT_ONCE), tl.arange(0, HALF)
    source = qkv + row * stride + head[:, None] * HEAD_DIM + i[None, :]
    mask = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & (i < half)[None, :]
    first, second = tl.load(source, mask=mask, other=0.0), tl.load(source + half, mask=mask, other=0.0)
    if first_head < NUM_HEADS + NUM_KV_HEADS:
        angle = tl.load(positions + row).to(tl.int64) * half + i
        c = tl.load(cos + angle, mask=i < half, other=0.0)[None, :]
        s = tl.load(sin + angle, mask=i < half, other=0.0)[None, :]
        one, two = first.to(tl.float32), second.to(tl.float32)
        turned = (head < NUM_HEADS + NUM_KV_HEADS)[:, None]
        first = tl.where(turned, (one * c - two * s).to(first.dtype), first)
        second = tl.where(turned, (two * c + one * s).to(second.dtype), second)
        tl.store(source, first, mask=mask & turned)
        tl.store(source + half, second, mask=mask & turned)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    if (first_head + HEADS_AT_ONCE > NUM_HEADS) & (first_head < NUM_HEADS + NUM_KV_HEADS):
        kv_head = head - NUM_HEADS
        place = (block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + offset
        written = (kv_head >= 0) & (kv_head < NUM_KV_HEADS)
        _put(keys, key_scales, place, first, second, written, HEAD_DIM, HALF, CODED, E4M3)
    if first_head + HEADS_AT_ONCE > NUM_HEADS + NUM_KV_HEADS:
        kv_head = head - NUM_HEADS - NUM_KV_HEADS
        place = (block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + offset
        written = (kv_head >= 0) & (kv_head < NUM_KV_HEADS)
        _put(values, value_scales, place, first, second, written, HEAD_DIM, HALF, CODED, E4M3)


def rotary_kv_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: KVCache,
    metadata: AttentionMetadata,
    num_heads: int,
) -> None:
    """See `kernels.ops.RotaryKvWrite`."""
    check_dtypes(qkv, cache.keys)
    check_contiguous(cos, sin, cache.keys, cache.values, cache.key_scales, cache.value_scales)
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    e4m3 = cache.keys.dtype == torch.float8_e4m3fn
    keys, values = (x.view(torch.uint8) if e4m3 else x for x in (cache.keys, cache.values))
    _rotary_kv_write[qkv.shape[0], triton.cdiv(num_heads + 2 * num_kv_heads, HEADS_AT_ONCE)](
        qkv,
        cos,
        sin,
        keys,
        values,
        cache.key_scales,
        cache.value_scales,
        metadata.positions,
        metadata.slot_mapping,
        qkv.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        HALF=triton.next_power_of_2(head_dim // 2),
        HEADS_AT_ONCE=HEADS_AT_ONCE,
        CODED=cache.key_scales is not None,
        E4M3=e4m3,
        num_warps=2,
    )
