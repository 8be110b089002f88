"""Attention in C++: a row's bits are its own, whatever step it is part of and however the work is cut among threads."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache, Ops
from kernels.registry import load_ops
from tests.kernels.attention_cases import Geometry, new_cache
from tests.kernels.case import normal
from tests.kernels.test_ops import TOLERANCE

SPLIT_KEYS = 256  # kSplitKeys of attention.h
CONTEXTS = (0, 1, 62, 190, SPLIT_KEYS - 5, SPLIT_KEYS, 700, 4 * SPLIT_KEYS - 1)  # keys before a request's first row


@dataclass(frozen=True, slots=True)
class Requests:
    """A cache with the keys of several requests in it, and queries for the last rows of each."""

    geometry: Geometry
    cache: KVCache
    tables: Tensor
    contexts: list[int]
    queries: Tensor  # [request, row, width]
    window: int
    soft_cap: float

    def attend(self, ops: Ops, parts: list[tuple[int, int, int]], padding: int = 0) -> list[Tensor]:
        """Of each part (request, first row, last row + 1) its rows' results, all from one step."""
        positions = [self.contexts[request] + row for request, first, last in parts for row in range(first, last)]
        starts = [0]
        for _, first, last in parts:
            starts.append(starts[-1] + last - first)
        metadata = AttentionMetadata(
            positions=torch.tensor(positions + [0] * padding),
            slot_mapping=torch.zeros(len(positions) + padding, dtype=torch.int64),
            block_tables=self.tables[[request for request, _, _ in parts]],
            query_start_loc=starts,
            query_starts=torch.tensor(starts, dtype=torch.int32),
            row_request=torch.tensor(
                [number for number, (_, first, last) in enumerate(parts) for _ in range(first, last)] + [-1] * padding,
                dtype=torch.int32,
            ),
        )
        rows = [self.queries[request, first:last] for request, first, last in parts]
        qkv = torch.cat([*rows, self.queries.new_full((padding, self.queries.shape[2]), torch.nan)])
        out = torch.full((len(qkv), self.geometry.num_heads * self.geometry.head_dim), torch.nan, dtype=qkv.dtype)
        ops.paged_attention(out, qkv, self.cache, metadata, self.geometry.head_dim**-0.5, self.window, self.soft_cap)
        assert not out.isnan().any()
        assert out[starts[-1] :].count_nonzero() == 0
        return [out[start:end] for start, end in itertools.pairwise(starts)]


def make_requests(choose: random.Random, dtype: torch.dtype, code_dtype: torch.dtype | None, rows: int) -> Requests:
    """Everything that attention depends on at random; NaN wherever a key is that no row may see."""
    generator = torch.Generator().manual_seed(choose.getrandbits(32))
    kv_heads, group = choose.choice([(1, 1), (2, 1), (3, 3), (2, 4), (1, 7)])
    geometry = Geometry(
        choose.choice([1, 8, 16, 24, 64]), kv_heads * group, kv_heads, choose.choice([6, 24, 32, 64, 80, 128])
    )
    contexts = choose.sample(CONTEXTS, 5)
    size, per_request = geometry.block_size, -(-(max(contexts) + rows) // geometry.block_size)
    blocks = 1 + per_request * len(contexts)
    tables = torch.randperm(blocks - 1, generator=generator).add(1).view(len(contexts), per_request)
    shape = (blocks, kv_heads, size, geometry.head_dim)
    keys, values = (normal(generator, *shape, dtype=dtype) for _ in range(2))
    for table, context in zip(tables, contexts, strict=True):
        used, rest = divmod(context + rows, size)
        for held in (keys, values):
            held[table[used + (rest > 0) :]] = torch.nan
            if rest:
                held[table[used], :, rest:] = torch.nan
    return Requests(
        geometry,
        new_cache(keys, values, code_dtype),
        tables.int(),
        contexts,
        normal(generator, len(contexts), rows, geometry.qkv_width, dtype=dtype),
        choose.choice([0, 0, 3, 70, 300]),
        choose.choice([0.0, 0.0, 5.0]),
    )


def without_nan(cache: KVCache) -> KVCache:
    """The same cache with zeros in place of NaN."""
    keys, values = cache.keys.nan_to_num(), cache.values.nan_to_num()
    if cache.key_scales is None or cache.value_scales is None:
        return KVCache(keys, values)
    return KVCache(keys, values, cache.key_scales.nan_to_num(), cache.value_scales.nan_to_num())


def c_ops(dtype: torch.dtype, threads: int) -> Ops:
    """The C++ attention on so many threads."""
    ops, choices = load_ops(["cpu_ops"], dtype, torch.device("cpu"), threads)
    assert {choice.op: choice.backend for choice in choices}["paged_attention"] == "cpu_ops"
    return ops


@pytest.mark.parametrize("code_dtype", [None, torch.int8], ids=["numbers", "int8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(8))
def test_a_rows_bits_do_not_depend_on_its_step(seed: int, dtype: torch.dtype, code_dtype: torch.dtype | None) -> None:
    choose, rows = random.Random(seed), 40
    requests = make_requests(choose, dtype, code_dtype, rows)
    numbers = range(len(requests.contexts))
    together = requests.attend(c_ops(dtype, 2), [(request, 0, rows) for request in numbers], padding=3)
    reference, _ = load_ops(["reference"], dtype, torch.device("cpu"), 1)
    clean = replace(requests, cache=without_nan(requests.cache))  # the reference reads whole blocks
    truth = clean.attend(reference, [(request, 0, rows) for request in numbers])
    for request in numbers:
        error = (together[request].double() - truth[request].double()).abs().max()
        assert float(error) <= TOLERANCE[dtype] * float(truth[request].double().abs().max())
        for threads in (1, 2):
            ops = c_ops(dtype, threads)
            for first, last in ((0, 1), (rows - 1, rows), (7, 8), (3, 11), (5, 40)):
                alone = requests.attend(ops, [(request, first, last)])[0]
                assert torch.equal(alone, together[request][first:last]), (request, threads, first, last)
    steps = [(request, row := choose.randrange(rows - 8), row + choose.choice([1, 1, 8])) for request in numbers]
    choose.shuffle(steps)
    for (request, first, last), found in zip(steps, requests.attend(c_ops(dtype, 2), steps), strict=True):
        assert torch.equal(found, together[request][first:last])
