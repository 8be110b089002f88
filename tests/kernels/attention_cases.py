"""Cases of the ops that work on the paged cache: rotary with the cache write, and attention.

The cache is full of random numbers, and of NaN in the blocks that no table names: who reads those gives itself away.
Where it holds codes, the truth is that of the numbers that they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache, Ops
from kernels.reference.rotary import encode
from tests.kernels.case import Case, CaseMaker, normal, padded


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model and its cache look like."""

    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


ODD = Geometry(block_size=8, num_heads=6, num_kv_heads=2, head_dim=24)  # nothing fits the tiles of a matrix unit
EVEN = Geometry(block_size=16, num_heads=9, num_kv_heads=3, head_dim=64)  # SmolLM2's
MANY_HEADS = Geometry(block_size=32, num_heads=20, num_kv_heads=1, head_dim=32)  # more than a tile has rows


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Rows of one request at positions start, start + 1, ...; its block table is a random permutation's part."""

    geometry: Geometry
    start: int
    table: list[int]

    def metadata(self, first: int, last: int, alignment: int) -> AttentionMetadata:
        rows, size = last - first, self.geometry.block_size
        positions = torch.arange(self.start + first, self.start + last)
        slots = torch.tensor([self.table[p // size] * size + p % size for p in positions.tolist()])
        padding = -rows % alignment
        return AttentionMetadata(
            positions=torch.cat([positions, torch.zeros(padding, dtype=torch.int64)]),
            slot_mapping=torch.cat([slots, torch.full((padding,), -1)]),
            block_tables=torch.tensor([self.table], dtype=torch.int32),
            query_start_loc=[0, rows],
            query_starts=torch.tensor([0, rows], dtype=torch.int32),
            row_request=torch.tensor([0] * rows + [-1] * padding, dtype=torch.int32),
        )


def new_cache(keys: Tensor, values: Tensor, code_dtype: torch.dtype | None) -> KVCache:
    """A cache that holds keys and values [blocks, C, B, D], coded unless `code_dtype` is None."""
    if code_dtype is None:
        return KVCache(keys, values)
    (key_codes, key_scales), (value_codes, value_scales) = encode(keys, code_dtype), encode(values, code_dtype)
    return KVCache(key_codes, value_codes, key_scales, value_scales)


def numbers(cache: KVCache) -> tuple[Tensor, Tensor]:
    """What its keys and values stand for, in fp64."""
    pairs = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    keys, values = (x.double() if scales is None else x.double() * scales.double().unsqueeze(-1) for x, scales in pairs)
    return keys, values


def rotary_kv_write(code_dtype: torch.dtype | None = None) -> CaseMaker:
    """Queries, then the keys and values read back from the cache."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        return _rotary_case(generator, dtype, rows, code_dtype)

    return make


def _rotary_case(generator: torch.Generator, dtype: torch.dtype, rows: int, code_dtype: torch.dtype | None) -> Case:
    heads, kv_heads, size, width = ODD.num_heads, ODD.num_kv_heads, ODD.block_size, ODD.head_dim
    qkv = normal(generator, rows, ODD.qkv_width, dtype=dtype)
    angles = torch.rand(100, width // 2, generator=generator, dtype=torch.float64) * 6
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    sequence = _Sequence(ODD, 13, torch.randperm(12, generator=generator).add(1).tolist())

    def run(ops: Ops, first: int, last: int) -> Tensor:
        part = padded(ops, qkv[first:last]).clone()
        cache = new_cache(*torch.zeros(2, 13, kv_heads, size, width, dtype=dtype), code_dtype)
        metadata = sequence.metadata(first, last, ops.row_alignment)
        ops.rotary_kv_write(part, cos, sin, cache, metadata, heads)
        slots = metadata.slot_mapping[: last - first]
        written = [held[slots // size, :, slots % size].flatten(1) for held in numbers(cache)]
        assert int((numbers(cache)[0].abs().sum((1, 3)) > 0).sum()) == last - first, "a row wrote where it should not"
        return torch.cat([part[: last - first, : heads * width].double(), *written], 1)

    split = qkv.double().view(rows, -1, width).clone()
    rows_cos, rows_sin = (t.double()[13 : 13 + rows].unsqueeze(1) for t in (cos, sin))
    one, two = split[:, : heads + kv_heads].chunk(2, -1)
    turned = torch.cat([one * rows_cos - two * rows_sin, two * rows_cos + one * rows_sin], -1)
    split[:, : heads + kv_heads] = turned
    if code_dtype is not None:
        codes, scales = encode(split[:, heads:].to(dtype), code_dtype)
        split[:, heads:] = codes.double() * scales.double().unsqueeze(-1)
    return Case(run, split.flatten(1), rows)


def paged_attention(
    geometry: Geometry = ODD,
    window: int = 0,
    soft_cap: float = 0.0,
    context: int = 600,
    code_dtype: torch.dtype | None = None,
) -> CaseMaker:
    """context: keys before the first row's own, several splits by default."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        heads, kv_heads, width = geometry.num_heads, geometry.num_kv_heads, geometry.head_dim
        qkv = normal(generator, rows, geometry.qkv_width, dtype=dtype)
        blocks = -(-(context + rows) // geometry.block_size)
        table = torch.randperm(blocks, generator=generator).add(2).tolist()  # not the null block, and not block 1
        shape = (blocks + 2, kv_heads, geometry.block_size, width)
        keys, values = (normal(generator, *shape, dtype=dtype) for _ in range(2))
        keys[1] = values[1] = torch.nan
        cache = new_cache(keys, values, code_dtype)
        sequence, scale = _Sequence(geometry, context, table), width**-0.5

        def run(ops: Ops, first: int, last: int) -> Tensor:
            part = padded(ops, qkv[first:last])
            out = torch.full((part.shape[0], heads * width), torch.nan, dtype=dtype)
            metadata = sequence.metadata(first, last, ops.row_alignment)
            ops.paged_attention(out, part, cache, metadata, scale, window, soft_cap)
            assert not out.isnan().any()
            return out[: last - first]

        flat_keys, flat_values = (
            held[table].transpose(1, 2).flatten(0, 1).repeat_interleave(heads // kv_heads, 1) for held in numbers(cache)
        )
        queries = qkv.double()[:, : heads * width].view(rows, heads, width)
        scores = torch.einsum("rhd,khd->rhk", queries, flat_keys) * scale
        if soft_cap:
            scores = soft_cap * (scores / soft_cap).tanh()
        distance = torch.arange(context, context + rows).unsqueeze(1) - torch.arange(len(flat_keys))
        visible = (distance >= 0) & (distance < (window or len(flat_keys)))
        weights = scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1)
        return Case(run, torch.einsum("rhk,khd->rhd", weights, flat_values).flatten(1), rows)

    return make
