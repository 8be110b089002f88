"""Paged attention in plain torch: one request at a time, the context in splits of a fixed size.

A split that lies wholly after a row, or wholly before its window, adds exact zeros to it, and query rows are padded to
a multiple of `ROW_ALIGNMENT`: so a row's bits depend neither on the rows beside it nor on how much more context the
step happens to cover. The online softmax over splits is that of FlashAttention (arXiv 2205.14135).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache, accumulation_dtype
from kernels.reference.linear import ROW_ALIGNMENT

SPLIT_SIZE = 256  # keys of one split; fixed, see above


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
    starts = metadata.query_start_loc
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        queries = qkv[start:end, : out.shape[1]]
        attend_request(
            out[start:end],
            queries,
            cache,
            metadata.block_tables[request],
            metadata.positions[start:end],
            scale,
            window,
            soft_cap,
        )
    out[starts[-1] :].zero_()


def attend_request(
    out: Tensor,
    queries: Tensor,
    cache: KVCache,
    block_table: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
) -> None:
    """Attention of one request's rows. out, queries [n, A * D]; block_table int32 [max_blocks]; positions int64 [n]."""
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    rows = queries.shape[0]
    wide = accumulation_dtype(queries.dtype)
    group = queries.shape[1] // (num_kv_heads * head_dim)
    padded = -(-rows * group // ROW_ALIGNMENT) * ROW_ALIGNMENT
    q = queries.new_zeros(num_kv_heads, padded, head_dim, dtype=wide)
    q[:, : rows * group].view(num_kv_heads, rows, group, head_dim).copy_(
        queries.view(rows, num_kv_heads, group, head_dim).transpose(0, 1)
    )
    q.mul_(scale)
    row_position = positions.new_zeros(padded)
    row_position[: rows * group].view(rows, group).copy_(positions.unsqueeze(1))

    context = int(positions[-1]) + 1
    blocks_per_split = -(-SPLIT_SIZE // block_size)
    split = blocks_per_split * block_size
    first_seen = max(0, int(positions[0]) + 1 - window) if window else 0
    peak = q.new_full((num_kv_heads, padded, 1), -torch.inf)
    total = q.new_zeros(num_kv_heads, padded, 1)
    mixed = torch.zeros_like(q)
    for first in range(first_seen // split * split, context, split):
        place = block_table, first // block_size, blocks_per_split, wide
        keys, values = gather_split(cache.keys, *place), gather_split(cache.values, *place)
        scores = torch.bmm(q, keys.transpose(1, 2))
        if cache.key_scales is not None:
            scores *= gather_split(cache.key_scales, *place).unsqueeze(1)
        if soft_cap:
            scores.div_(soft_cap).tanh_().mul_(soft_cap)
        key_position = torch.arange(first, first + keys.shape[1], device=q.device)
        scores.masked_fill_(key_position > row_position.unsqueeze(1), -torch.inf)
        if window:
            scores.masked_fill_(key_position <= row_position.unsqueeze(1) - window, -torch.inf)
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        reference = new_peak.masked_fill(new_peak == -torch.inf, 0)  # of a row that has seen no key yet
        weights = torch.exp(scores - reference)
        shrink = torch.exp(peak - reference)
        total = total * shrink + weights.sum(-1, keepdim=True)
        if cache.value_scales is not None:
            weights *= gather_split(cache.value_scales, *place).unsqueeze(1)
        mixed = mixed * shrink + torch.bmm(weights, values)
        peak = new_peak
    mixed /= total
    result = mixed[:, : rows * group].view(num_kv_heads, rows, group, head_dim).transpose(0, 1)
    out.copy_(result.reshape(rows, -1))


def gather_split(cache: Tensor, block_table: Tensor, first_block: int, num_blocks: int, wide: torch.dtype) -> Tensor:
    """Of one split, what `cache` [blocks, C, B, ...] holds, as [C, num_blocks * B, ...].

    Blocks past the table are the null block, as zeros.
    """
    ids = block_table[first_block : first_block + num_blocks]
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache  # not every device indexes float8
    gathered = raw.index_select(0, ids).view(cache.dtype).transpose(0, 1).to(wide)
    num_kv_heads, _, *rest = gathered.shape
    split = gathered.new_zeros(num_kv_heads, num_blocks, *rest)
    split[:, : len(ids)] = gathered
    return split.flatten(1, 2)
