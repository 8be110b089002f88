"""Paged attention in Triton, one kernel for prefill, decode and verify rows.

A tile holds some neighbouring tokens of a request times all query heads of one key head, so that each key is read once
for all of them. The context is cut at multiples of SPLIT keys; within a split runs the online softmax of FlashAttention
(arXiv 2205.14135), and splits are merged in their order: in the program itself where rows alone keep the GPU busy, else
by a second kernel over what the first left in scratch memory (arXiv 2311.01282). Both ways run the same arithmetic, and
keys that a row does not see add exact zeros to it, so a row's bits depend neither on which way is taken nor on the rows
beside it. Knows shapes alone on the host: nothing here waits for the device, so a CUDA graph can record it.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache
from kernels.triton_ops.device import INTERPRETED, check_codes, check_contiguous, check_dtypes
from kernels.triton_ops.elementwise import tanh

LOG2_E = math.log2(math.e)
SPLIT = 256  # keys of a split; fixed, see above
MIN_ROWS = 16  # of a tile: what a matrix unit multiplies at once
TILE_BYTES, MAX_TILE = 1 << 14, 128  # of the keys that are read at once, as of the values, and how many these may be
NUM_STAGES = 5  # of loads; two tiles are on their way at once, since the block table is read before each
PROGRAMS = 1024  # enough to keep a GPU busy; more rows than that, and no context is shared among programs
SCRATCH_NUMBERS = 1 << 25  # the most that splits may leave behind, fp32
MERGED_AT_ONCE = 1 if INTERPRETED else 8  # splits whose reads are under way together


@triton.jit
def _merge(
    peak: tl.tensor, total: tl.tensor, mixed: tl.tensor, new_peak: tl.tensor, new_total: tl.tensor, new_mixed: tl.tensor
) -> tl.tensor:
    """Two parts of a softmax as one. fma is spelled out, so that it does not depend on what surrounds the call."""
    both = tl.maximum(peak, new_peak)
    reference = tl.where(both == float("-inf"), 0.0, both)  # where no key was seen yet
    old, new = tl.exp2(peak - reference), tl.exp2(new_peak - reference)
    total = tl.fma(total, old, new_total * new)
    mixed = tl.fma(mixed, tl.broadcast_to(old[:, None], mixed.shape), new_mixed * new[:, None])
    return both, total, mixed


@triton.jit(do_not_specialize=["num_splits", "direct"])
def _attend(
    out: tl.tensor,
    mixed_parts: tl.tensor,
    peak_parts: tl.tensor,
    total_parts: tl.tensor,
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    block_tables: tl.tensor,
    query_starts: tl.tensor,
    row_request: tl.tensor,
    positions: tl.tensor,
    inner_scale: tl.tensor,
    outer_scale: tl.tensor,
    num_splits: tl.tensor,
    direct: tl.tensor,
    out_stride: tl.tensor,
    qkv_stride: tl.tensor,
    table_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    CODED: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """A program for each row, key head and lane; those whose row is not the first of a tile have nothing to do.

    A tile is TOKENS rows of a request, counted from its first. Lane n of N takes the splits n, n + N, ... counted from
    the first that the tile sees; `direct`: one lane takes all and finishes.
    """
    first_row, kv_head, lane = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    request = tl.load(row_request + first_row).to(tl.int64)
    member, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    column = (kv_head * GROUP + member % GROUP)[:, None] * HEAD_DIM + d[None, :]
    if request < 0:
        if lane == 0:
            nothing = tl.zeros([ROWS, DIM], out.dtype.element_ty)
            mask = (member < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
            tl.store(out + first_row * out_stride + column, nothing, mask=mask)
        return
    if (first_row - tl.load(query_starts + request)) % TOKENS != 0:
        return
    token = member // GROUP
    row = first_row + token
    owned = (token < TOKENS) & (row < tl.load(query_starts + request + 1))
    position = tl.load(positions + row, mask=owned, other=-1).to(tl.int32)
    last_key = tl.max(position, 0)
    first_key = 0
    if WINDOW:
        first_key = tl.maximum(tl.min(tl.where(owned, position, 2147483647), 0) + 1 - WINDOW, 0)
    mask = owned[:, None] & (d < HEAD_DIM)[None, :]
    queries = tl.load(qkv + row[:, None] * qkv_stride + column, mask=mask, other=0.0)
    peak, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM], tl.float32)
    for split in range(first_key // SPLIT + lane, last_key // SPLIT + 1, tl.num_programs(2)):
        part_peak, part_total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
        part_mixed = tl.zeros([ROWS, DIM], tl.float32)
        begin = tl.maximum(split * SPLIT, first_key // TILE * TILE)
        for tile in range(begin, tl.minimum(split * SPLIT + SPLIT, last_key + 1), TILE):
            key = tile + tl.arange(0, TILE)
            there = (key >= first_key) & (key <= last_key)
            block = tl.load(block_tables + request * table_stride + key // BLOCK_SIZE, mask=there, other=0)
            place = (block.to(tl.int64) * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + key % BLOCK_SIZE
            elements = place[:, None] * HEAD_DIM + d[None, :]
            loaded = there[:, None] & (d < HEAD_DIM)[None, :]
            k = tl.load(keys + elements, mask=loaded, other=0.0)
            v = tl.load(values + elements, mask=loaded, other=0.0)
            if CODED:
                k, v = k.to(tl.float32).to(queries.dtype), v.to(tl.float32).to(queries.dtype)
            scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * inner_scale
            if CODED:
                scores *= tl.load(key_scales + place, mask=there, other=0.0)[None, :]
            if CAPPED:
                scores = tanh(scores) * outer_scale
            visible = key[None, :] <= position[:, None]
            if WINDOW:
                visible = visible & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
            new_peak = tl.maximum(part_peak, tl.max(scores, 1))
            reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # where no key was seen yet
            weights = tl.exp2(scores - reference[:, None])
            shrink = tl.exp2(part_peak - reference)
            part_total = part_total * shrink + tl.sum(weights, 1)
            part_peak = new_peak
            if CODED:
                weights *= tl.load(value_scales + place, mask=there, other=0.0)[None, :]
            part_mixed = tl.dot(weights.to(queries.dtype), v, part_mixed * shrink[:, None], input_precision="ieee")
        if direct:
            peak, total, mixed = _merge(peak, total, mixed, part_peak, part_total, part_mixed)
        else:
            index = (row * NUM_KV_HEADS * GROUP + kv_head * GROUP + member % GROUP) * num_splits + split
            tl.store(mixed_parts + index[:, None] * HEAD_DIM + d[None, :], part_mixed, mask=mask)
            tl.store(peak_parts + index, part_peak, mask=owned)
            tl.store(total_parts + index, part_total, mask=owned)
    if direct:
        result = mixed / tl.where(owned, total, 1.0)[:, None]
        tl.store(out + row[:, None] * out_stride + column, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_splits"])
def _finish(
    out: tl.tensor,
    mixed_parts: tl.tensor,
    peak_parts: tl.tensor,
    total_parts: tl.tensor,
    row_request: tl.tensor,
    positions: tl.tensor,
    num_splits: tl.tensor,
    out_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """A program for each row and key head merges the splits that the row sees."""
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(row_request + row) < 0:
        return
    position = tl.load(positions + row).to(tl.int32)
    last = position // SPLIT
    first = 0
    if WINDOW:
        first = tl.maximum(position + 1 - WINDOW, 0) // SPLIT
    member, d = tl.arange(0, HEADS), tl.arange(0, DIM)
    owned = member < GROUP
    mask = owned[:, None] & (d < HEAD_DIM)[None, :]
    head = kv_head * GROUP + member
    peak, total = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, DIM], tl.float32)
    for chunk in range(first, last + 1, AT_ONCE):
        for i in tl.static_range(AT_ONCE):
            split = chunk + i
            seen = owned & (split <= last)
            index = (row * NUM_KV_HEADS * GROUP + head) * num_splits + split
            part_peak = tl.load(peak_parts + index, mask=seen, other=float("-inf"))
            part_total = tl.load(total_parts + index, mask=seen, other=0.0)
            elements = mixed_parts + index[:, None] * HEAD_DIM + d[None, :]
            part_mixed = tl.load(elements, mask=mask & (split <= last), other=0.0)
            peak, total, mixed = _merge(peak, total, mixed, part_peak, part_total, part_mixed)
    result = mixed / tl.where(owned, total, 1.0)[:, None]
    column = head[:, None] * HEAD_DIM + d[None, :]
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), mask=mask)


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
    check_dtypes(out, qkv, cache.keys)
    check_codes(cache.keys)
    check_contiguous(cache.keys, cache.values, cache.key_scales, cache.value_scales)
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    rows, num_heads = qkv.shape[0], out.shape[1] // head_dim
    num_splits = triton.cdiv(metadata.block_tables.shape[1] * block_size, SPLIT)
    lanes = lanes_of(rows, num_kv_heads, num_splits, out.shape[1])
    direct = lanes == 1
    parts = 0 if direct else rows * num_heads * num_splits
    sizes = parts * head_dim, parts, parts
    left_behind = [torch.empty(size, dtype=torch.float32, device=out.device) for size in sizes]
    constants = tile_constants(cache, num_heads, window, qkv.dtype.itemsize)
    _attend[rows, num_kv_heads, lanes](
        out,
        *left_behind,
        qkv,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        metadata.block_tables,
        metadata.query_starts,
        metadata.row_request,
        metadata.positions,
        scale / soft_cap if soft_cap else scale * LOG2_E,
        soft_cap * LOG2_E,
        num_splits,
        int(direct),
        out.stride(0),
        qkv.stride(0),
        metadata.block_tables.stride(0),
        CAPPED=soft_cap > 0,
        num_warps=4,
        num_stages=NUM_STAGES,
        **constants,
    )
    if not direct:
        shared = {name: constants[name] for name in ("NUM_KV_HEADS", "GROUP", "HEAD_DIM", "DIM", "WINDOW", "SPLIT")}
        _finish[rows, num_kv_heads](
            out,
            *left_behind,
            metadata.row_request,
            metadata.positions,
            num_splits,
            out.stride(0),
            HEADS=triton.next_power_of_2(shared["GROUP"]),
            AT_ONCE=MERGED_AT_ONCE,
            num_warps=4,
            **shared,
        )


def tile_constants(cache: KVCache, num_heads: int, window: int, itemsize: int) -> dict[str, int]:
    """What the model alone decides, never the step. itemsize: bytes of a number that is multiplied."""
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    group, dim = num_heads // num_kv_heads, max(16, triton.next_power_of_2(head_dim))
    tile_rows = max(MIN_ROWS, triton.next_power_of_2(group))
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "WINDOW": window,
        "CODED": cache.key_scales is not None,
        "TOKENS": tile_rows // group,
        "ROWS": tile_rows,
        "DIM": dim,
        "TILE": min(MAX_TILE, max(16, TILE_BYTES // (dim * itemsize))),
        "SPLIT": SPLIT,
    }


def lanes_of(rows: int, num_kv_heads: int, num_splits: int, width: int) -> int:
    """Among how many programs each row's splits are dealt; 1 where that would need too much memory or bring nothing.

    width: of the output, all heads together.
    """
    lanes = min(num_splits, PROGRAMS // (rows * num_kv_heads))
    return lanes if lanes > 1 and rows * width * num_splits <= SCRATCH_NUMBERS else 1
