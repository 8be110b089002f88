"""Attention in Triton over a step of everything at once, with poison wherever nobody should read.

Knows how the kernel cuts its work (splits, lanes), and that none of it may show in the bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kernels.check_cases import ROWS
from kernels.checks import CHECKS, FLOAT8_CHECKS, run_check
from kernels.ops import AttentionMetadata, KVCache
from kernels.registry import backend_ops
from kernels.triton_ops import attention
from tests.kernels.attention_cases import Geometry, new_cache, numbers
from tests.kernels.case import normal
from tests.kernels.test_ops import TOLERANCE

FLOAT8 = torch.float8_e4m3fn
POISONS = {"nan": math.nan, "huge": 6e4}  # 6e4: near the most that fp16 holds; an interpreter's max passes over NaN

# (keys before the first row, rows): a prefill, decodes short and long, a request without rows, verifications
STEP = ((0, 7), (0, 1), (300, 1), (5, 0), (509, 6), (255, 2))
PADDING = 2


@dataclass(frozen=True, slots=True)
class Attention:
    """What a model asks for, and how exact it is."""

    geometry: Geometry
    window: int = 0
    soft_cap: float = 0.0
    dtype: torch.dtype = torch.float32
    code_dtype: torch.dtype | None = None


CASES = {
    "three heads to one": Attention(Geometry(16, 6, 2, 64)),
    "three heads to one, fp16, window": Attention(Geometry(16, 6, 2, 64), window=70, dtype=torch.float16),
    "eight heads to one": Attention(Geometry(7, 8, 1, 80), dtype=torch.float16),
    "eight heads to one, long window": Attention(Geometry(32, 8, 1, 80), window=300),
    "one head each, capped": Attention(Geometry(5, 2, 2, 128), soft_cap=5.0),
    "one head each, int8": Attention(Geometry(16, 1, 1, 128), code_dtype=torch.int8),
    "three heads to one, float8": Attention(Geometry(16, 3, 1, 64), window=100, code_dtype=FLOAT8),
}


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of a step, and what should come out: truth fp64 [rows, A * D], padding left out."""

    case: Attention
    qkv: Tensor
    cache: KVCache
    metadata: AttentionMetadata
    truth: Tensor

    def run(self) -> Tensor:
        case, geometry = self.case, self.case.geometry
        out = torch.full((len(self.qkv), geometry.num_heads * geometry.head_dim), math.nan, dtype=case.dtype)
        scale = geometry.head_dim**-0.5
        attention.paged_attention(out, self.qkv, self.cache, self.metadata, scale, case.window, case.soft_cap)
        return out

    def part(self, first: int, last: int) -> Step:
        """Rows of one request as a step of their own."""
        old, request = self.metadata, int(self.metadata.row_request[first])
        metadata = AttentionMetadata(
            positions=old.positions[first:last],
            slot_mapping=old.slot_mapping[first:last],
            block_tables=old.block_tables[request : request + 1],
            query_start_loc=[0, last - first],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32),
            row_request=torch.zeros(last - first, dtype=torch.int32),
        )
        return replace(self, qkv=self.qkv[first:last], metadata=metadata)


def make_step(case: Attention, poison: float, requests: Sequence[tuple[int, int]] = STEP) -> Step:
    """What no row may see is `poison`: other blocks, the null block, and what lies behind a request's last key."""
    geometry, generator = case.geometry, torch.Generator().manual_seed(7)
    size, width, kv_heads = geometry.block_size, geometry.head_dim, geometry.num_kv_heads
    lengths = [context + rows for context, rows in requests]
    blocks = [-(-length // size) for length in lengths]
    ids = torch.randperm(sum(blocks) + 3, generator=generator) + 1
    tables = torch.zeros(len(requests), max(blocks) + 2, dtype=torch.int32)
    shape = (len(ids) + 1, kv_heads, size, width)
    keys, values = (torch.full(shape, poison, dtype=case.dtype) for _ in range(2))
    tokens, slots, positions, owners = [], [], [], []
    for request, (context, rows) in enumerate(requests):
        first = sum(blocks[:request])
        tables[request, : blocks[request]] = ids[first : first + blocks[request]]
        spots = torch.arange(lengths[request])
        first_seen = max(0, context + 1 - case.window) if case.window else 0
        for cache in (keys, values):
            vectors = normal(generator, lengths[request], kv_heads, width, dtype=case.dtype)
            at = tables[request][spots[first_seen:] // size].long(), slice(None), spots[first_seen:] % size
            cache[at] = vectors[first_seen:]
        tables[request, : first_seen // size] = 0  # as if the window's blocks had been given back
        tokens.append(normal(generator, rows, geometry.qkv_width, dtype=case.dtype))
        positions += range(context, context + rows)
        slots += (tables[request][spots // size].long() * size + spots % size)[context:].tolist()
        owners += [request] * rows
    starts = list(itertools.accumulate((rows for _, rows in requests), initial=0))
    metadata = AttentionMetadata(
        positions=torch.tensor(positions + [0] * PADDING),
        slot_mapping=torch.tensor(slots + [-1] * PADDING),
        block_tables=tables,
        query_start_loc=starts,
        query_starts=torch.tensor(starts, dtype=torch.int32),
        row_request=torch.tensor(owners + [-1] * PADDING, dtype=torch.int32),
    )
    qkv = torch.cat([*tokens, torch.full((PADDING, geometry.qkv_width), poison, dtype=case.dtype)])
    cache = new_cache(keys, values, case.code_dtype)
    return Step(case, qkv, cache, metadata, _truth(case, qkv, cache, metadata))


def _truth(case: Attention, qkv: Tensor, cache: KVCache, metadata: AttentionMetadata) -> Tensor:
    geometry, rows = case.geometry, metadata.query_start_loc[-1]
    group = geometry.num_heads // geometry.num_kv_heads
    out = torch.empty(rows, geometry.num_heads, geometry.head_dim, dtype=torch.float64)
    held = numbers(cache)
    for row in range(rows):
        position, table = int(metadata.positions[row]), metadata.block_tables[metadata.row_request[row]].long()
        spots = torch.arange(max(0, position + 1 - case.window) if case.window else 0, position + 1)
        at = table[spots // geometry.block_size], slice(None), spots % geometry.block_size
        keys, values = (x[at].repeat_interleave(group, 1) for x in held)
        queries = qkv[row, : geometry.num_heads * geometry.head_dim].double().view(geometry.num_heads, -1)
        scores = torch.einsum("hd,khd->hk", queries, keys) * geometry.head_dim**-0.5
        if case.soft_cap:
            scores = case.soft_cap * (scores / case.soft_cap).tanh()
        out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), values)
    return out.flatten(1)


@pytest.mark.parametrize("name", CASES)
def test_a_mixed_step_sees_its_own_keys_alone(name: str) -> None:
    clean = make_step(CASES[name], 0.0)
    out = clean.run()
    rows = clean.metadata.query_start_loc[-1]
    error = float((out[:rows].double() - clean.truth).abs().max())
    assert error <= TOLERANCE[clean.case.dtype] * float(clean.truth.abs().max())
    assert out[rows:].count_nonzero() == 0, "a padding row is not zeros"
    for poison, value in POISONS.items():
        assert torch.equal(make_step(CASES[name], value).run(), out), f"it read what is {poison}"


@pytest.mark.parametrize("name", ["three heads to one, fp16, window", "one head each, capped"])
def test_a_request_alone_and_its_rows_one_by_one_have_the_same_bits(name: str) -> None:
    step = make_step(CASES[name], math.nan)
    together = step.run()
    for first, last in itertools.pairwise(step.metadata.query_start_loc):
        if first < last:
            assert torch.equal(step.part(first, last).run(), together[first:last]), (first, last)
        for row in range(first, last):
            assert torch.equal(step.part(row, row + 1).run(), together[row : row + 1]), row


@pytest.mark.parametrize(
    "changed",
    [{"PROGRAMS": 0}, {"PROGRAMS": 80}, {"SCRATCH_NUMBERS": 0}, {"MERGED_AT_ONCE": 4}],
    ids=["one program a row", "two lanes", "no scratch memory", "merged four at a time"],
)
def test_how_splits_are_dealt_does_not_show(changed: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(CASES["three heads to one"], math.nan)
    usual = step.run()
    for name, value in changed.items():
        monkeypatch.setattr(attention, name, value)
    assert torch.equal(step.run(), usual)


def test_the_check_at_the_first_load_takes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows go through their splits one by one, a row alone deals them among programs: right, and the same bits."""
    taken: dict[int, set[int]] = {}

    def watched(rows: int, *given: int) -> int:
        lanes = attention_lanes(rows, *given)
        taken.setdefault(rows, set()).add(lanes)
        return lanes

    attention_lanes = attention.lanes_of
    monkeypatch.setattr(attention, "lanes_of", watched)
    (check,) = [one for one in CHECKS["paged_attention"] if one.name == "many heads"]
    cpu = torch.device("cpu")
    ops, reference = backend_ops(["triton_ops"], torch.float32, cpu), backend_ops([], torch.float64, cpu)
    assert run_check(replace(check, alone=check.alone[:1]), ops, reference, torch.float32, cpu).fault == ""
    assert taken == {ROWS: {1}, 1: {2}}


def test_a_float8_cache_passes_its_check() -> None:
    cpu = torch.device("cpu")
    ops, reference = backend_ops(["triton_ops"], torch.float32, cpu), backend_ops([], torch.float64, cpu)
    for checks in FLOAT8_CHECKS.values():
        for check in checks:
            one_alone = replace(check, alone=check.alone[:1])
            assert run_check(one_alone, ops, reference, torch.float32, cpu).fault == ""


def test_rows_are_dealt_among_programs_within_bounds() -> None:
    assert attention.lanes_of(rows=1, num_kv_heads=8, num_splits=128, width=4096) == 128
    assert attention.lanes_of(rows=16, num_kv_heads=8, num_splits=128, width=4096) == 8
    assert attention.lanes_of(rows=2048, num_kv_heads=8, num_splits=8, width=4096) == 1
    assert attention.lanes_of(rows=1, num_kv_heads=8, num_splits=1, width=4096) == 1
    assert attention.lanes_of(rows=64, num_kv_heads=8, num_splits=512, width=4096) == 1, "half a gigabyte"
