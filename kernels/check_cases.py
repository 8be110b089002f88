"""Small awkward inputs for every op of a layer, and the op on some of their rows: what `kernels.checks` runs.

Owns `Side`, which gives both sides of a check the same numbers. Knows no backend: it is given `Ops`.
Invariant: inputs come from a fixed seed and are the same on every device.

Awkward on purpose: more than 16 rows, sizes that fit no tile, two requests at different positions, several query heads
to a key's, block tables out of order, pages of NaN that no table names, and a padding row. What an op gets of some rows
begins at a memory block of its own, as a model's buffers do: Triton compiles a kernel anew for odd addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.group_quant import GroupQuant, pack_nibbles
from kernels.ops import AttentionMetadata, KVCache, Ops, accumulation_dtype
from kernels.reference.rotary import encode

ROWS = 21


@dataclass(frozen=True, slots=True)
class Side:
    """Where a check's inputs are placed: the same numbers, on the device under test or in fp64 on the CPU.

    stored: the dtype that the numbers are rounded to. dtype: the one that they are given in.
    """

    device: torch.device
    stored: torch.dtype
    dtype: torch.dtype
    generator: torch.Generator

    def numbers(self, values: Tensor) -> Tensor:
        """`values` as this side has them."""
        return values.to(self.stored).to(self.device, self.dtype)

    def normal(self, *shape: int) -> Tensor:
        """Random numbers of the standard normal distribution."""
        return self.numbers(torch.randn(*shape, generator=self.generator))

    def wide(self, values: Tensor) -> Tensor:
        """fp32 numbers (fp64 for a float64 side), such as scores and angles."""
        return values.float().to(self.device, accumulation_dtype(self.dtype))

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Random integers from 0 to high - 1."""
        return torch.randint(high, shape, generator=self.generator, dtype=dtype).to(self.device)

    def placed(self, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers on this side's device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A buffer full of NaN, so that what an op leaves out is seen; integers are -7."""
        kind = dtype or self.dtype
        return torch.full(shape, torch.nan if kind.is_floating_point else -7, dtype=kind, device=self.device)


Check = Callable[[Ops, Side, slice], tuple[Tensor, ...]]  # which of the ROWS to run: their results


def span(rows: slice) -> int:
    """How many rows."""
    return int(rows.stop - rows.start)


def padded(ops: Ops, x: Tensor) -> Tensor:
    """Rows padded with zeros to what the backend wants."""
    return torch.cat([x, x.new_zeros(-x.shape[0] % ops.row_alignment, *x.shape[1:])])


# --- gathers, norms, single elements ---


def embedding(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    table, ids = side.normal(50, 43), side.integers(50, ROWS)
    out = side.empty(span(rows), 43)
    ops.embedding(out, ids[rows].clone(), table)
    return (out,)


def gather_rows(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    x, order = side.normal(50, 43), side.integers(50, ROWS)
    out = side.empty(span(rows), 43)
    ops.gather_rows(out, x, order[rows].clone())
    return (out,)


def scatter_rows(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Into the midst of a wider buffer; every fourth row goes nowhere."""
    x, order = side.normal(ROWS, 43), side.placed(torch.randperm(ROWS, generator=side.generator).tolist())
    out = side.numbers(torch.zeros(ROWS, 60))
    ops.scatter_rows(out, x[rows].clone(), order.masked_fill(order % 4 == 3, -1)[rows].clone(), 11)
    return (out[order[rows]],)


def rms_norm(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    x, weight = side.normal(ROWS, 83), side.normal(83)
    out = side.empty(span(rows), 83)
    ops.rms_norm(out, x[rows].clone(), weight, 1e-5, 1.0)
    return (out,)


def add_rms_norm(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    x, residual, weight = side.normal(ROWS, 83), side.normal(ROWS, 83), side.normal(83)
    summed, out = residual[rows].clone(), side.empty(span(rows), 83)
    ops.add_rms_norm(out, summed, x[rows].clone(), weight, 1e-5)
    return out, summed


def group_rms_norm(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    x, weight = side.normal(ROWS, 83)[rows].clone(), side.normal(19)
    ops.group_rms_norm(x, 10, 3, weight, 1e-5)
    return (x,)


def add(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    residual, x = side.normal(ROWS, 83)[rows].clone(), side.normal(ROWS, 83)[rows].clone()
    ops.add(residual, x)
    return (residual,)


def scale(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    x = side.normal(ROWS, 83)[rows].clone()
    ops.scale(x, 0.22)
    return (x,)


def soft_cap(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    x = side.numbers(20 * torch.randn(ROWS, 83, generator=side.generator))[rows].clone()
    ops.soft_cap(x, 30.0)
    return (x,)


def silu_mul(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    gate_up, out = side.normal(ROWS, 2 * 53)[rows].clone(), side.empty(span(rows), 53)
    ops.silu_mul(out, gate_up)
    return (out,)


def gelu_mul(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    gate_up, out = side.normal(ROWS, 2 * 53)[rows].clone(), side.empty(span(rows), 53)
    ops.gelu_mul(out, gate_up)
    return (out,)


# --- products ---


def linear(inputs: int, outputs: int, *, logits: bool = False) -> Check:
    """logits: the result is fp32, and there is no bias."""

    def check(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
        x, weight, bias = side.normal(ROWS, inputs), side.normal(outputs, inputs), side.normal(outputs)
        part = padded(ops, x[rows])
        out = side.empty(len(part), outputs, dtype=accumulation_dtype(side.dtype) if logits else side.dtype)
        ops.linear(out, part, weight, None if logits else bias)
        return (out[: span(rows)],)

    return check


def random_codes(side: Side, shape: tuple[int, int], bits: int, group_size: int, form: str) -> GroupQuant:
    """Random weights of about the size 1/8. form: "zeros", "minimum", "permuted" or "sub-scales"."""
    outputs, inputs = shape
    groups, top = -(-inputs // group_size), 1 << bits

    def halves(*size: int, around: float) -> Tensor:
        return ((torch.rand(*size, generator=side.generator) + 0.5) * around).half().to(side.device)

    codes = side.integers(top, outputs, inputs, dtype=torch.uint8)
    weight = GroupQuant(
        shape=shape,
        bits=bits,
        group_size=group_size,
        codes=pack_nibbles(codes) if bits == 4 else codes,
        scale=halves(outputs, groups, around=0.5 / top),
        zero=side.integers(top, outputs, groups, dtype=torch.uint8),
    )
    if form == "permuted":
        order = torch.randperm(inputs, generator=side.generator).to(torch.int32)
        return replace(weight, perm=order.to(side.device))
    if form == "sub-scales":
        shares = side.integers(63, outputs, groups, dtype=torch.uint8)
        scale = halves(outputs, -(-groups // 8), around=0.5 / top / 32)
        minimum = -halves(outputs, -(-groups // 8), around=0.25 / 32)
        scales = replace(weight, zero=0, scale=scale, minimum=minimum)
        return replace(scales, sub_scale=(shares + 1).view(torch.int8), sub_minimum=shares, sub_groups=8)
    return replace(weight, zero=0, minimum=-halves(outputs, groups, around=0.25)) if form == "minimum" else weight


def group_linear(
    bits: int, group_size: int, form: str, inputs: int = 192, outputs: int = 101, activation_bits: int = 16
) -> Check:
    def check(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
        codes = random_codes(side, (outputs, inputs), bits, group_size, form)
        weight = ops.prepare_group_quant(codes.with_activation_bits(activation_bits))
        part = padded(ops, side.normal(ROWS, inputs)[rows])
        out = side.empty(len(part), outputs)
        ops.group_linear(out, part, weight, None)
        return (out[: span(rows)],)

    return check


def group_embedding(bits: int, group_size: int, form: str) -> Check:
    def check(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
        table = ops.prepare_group_quant(random_codes(side, (75, 96), bits, group_size, form))
        ids, out = side.integers(75, ROWS), side.empty(span(rows), 96)
        ops.group_embedding(out, ids[rows].clone(), table)
        return (out,)

    return check


def prepare_group_quant(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Rows of the unit matrix pick out what the prepared codes stand for."""
    weight = ops.prepare_group_quant(random_codes(side, (37, 96), 4, 32, "minimum"))
    picks = torch.randint(96, (ROWS,), generator=side.generator)
    part = padded(ops, side.numbers(torch.eye(96)[picks])[rows])
    out = side.empty(len(part), 37)
    ops.group_linear(out, part, weight, None)
    return (out[: span(rows)],)


def mixture_mlp(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
    """Five experts of width 24, two to a row, whose scores lie apart: rounding must not change the choice."""
    x, router = torch.randn(ROWS, 40, generator=side.generator), torch.zeros(5, 40)
    router[:, :5] = torch.eye(5)
    x[:, :5] = torch.stack([torch.randperm(5, generator=side.generator) for _ in range(ROWS)]) - 2.0
    gate_up = [side.numbers(torch.randn(48, 40, generator=side.generator) / 4) for _ in range(5)]
    down = [side.numbers(torch.randn(40, 24, generator=side.generator) / 4) for _ in range(5)]
    part = padded(ops, side.numbers(x)[rows])
    out = side.empty(len(part), 40)
    ops.mixture_mlp(out, part, side.numbers(router), gate_up, down, 2, True)
    return (out[: span(rows)],)


# --- the paged cache ---

BLOCK, HEADS, KV_HEADS, HEAD_DIM = 8, 6, 2, 40
QKV_WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM
MANY_KV_HEADS = 32  # of two heads each: with them ROWS keep a GPU busy without sharing a row's keys among programs
FIRST_ROWS = 12  # of the first request; the rest but one are the second's, and the last row is padding
STARTS = (301, 5)  # the position of either request's first row: several splits of keys, and less than a block
TABLES = (40, 2)  # blocks of either request; the rest of the shorter table is the null block
BLOCKS = sum(TABLES) + 2  # with the null block, and one that no table names


def _metadata(ops: Ops, side: Side, rows: slice) -> AttentionMetadata:
    """Of rows that are all of two requests' and a padding row, or a single one."""
    order = torch.randperm(sum(TABLES), generator=torch.Generator().manual_seed(7)).add(2).tolist()
    tables = [order[: TABLES[0]], order[TABLES[0] :] + [0] * (TABLES[0] - TABLES[1])]
    owner = [0] * FIRST_ROWS + [1] * (ROWS - 1 - FIRST_ROWS) + [-1]
    place = [*range(FIRST_ROWS), *range(ROWS - 1 - FIRST_ROWS), 0]
    lone = span(rows) == 1
    padding = -span(rows) % ops.row_alignment
    owners = owner[rows] + [-1] * padding
    positions = [0 if who < 0 else STARTS[who] + at for who, at in zip(owner[rows], place[rows], strict=True)]
    positions += [0] * padding
    slots = [
        -1 if who < 0 else tables[who][position // BLOCK] * BLOCK + position % BLOCK
        for who, position in zip(owners, positions, strict=True)
    ]
    starts = [0, 1] if lone else [0, FIRST_ROWS, ROWS - 1]
    return AttentionMetadata(
        positions=side.placed(positions),
        slot_mapping=side.placed(slots),
        block_tables=side.placed([tables[owner[rows.start]]] if lone else tables, torch.int32),
        query_start_loc=starts,
        query_starts=side.placed(starts, torch.int32),
        row_request=side.placed([min(who, 0) for who in owners] if lone else owners, torch.int32),
    )


def rotary_kv_write(code_dtype: torch.dtype | None) -> Check:
    def check(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
        part = padded(ops, side.normal(ROWS, QKV_WIDTH)[rows])
        angles = 6 * torch.rand(400, HEAD_DIM // 2, generator=side.generator)
        cache = _cache(side, torch.zeros(2, BLOCKS, KV_HEADS, BLOCK, HEAD_DIM), code_dtype)
        metadata = _metadata(ops, side, rows)
        ops.rotary_kv_write(part, side.wide(angles.cos()), side.wide(angles.sin()), cache, metadata, HEADS)
        real = int(metadata.query_start_loc[-1])
        slots = metadata.slot_mapping[:real]
        keys, values = (held[slots // BLOCK, :, slots % BLOCK].flatten(1) for held in _held(cache))
        strays = torch.stack([held.abs().sum((1, 3)).count_nonzero() for held in _held(cache)]).sub(real)
        return part[:real, : HEADS * HEAD_DIM], keys, values, strays.expand(real, 2)

    return check


def _cache(side: Side, both: Tensor, code_dtype: torch.dtype | None) -> KVCache:
    """both fp32 [2, blocks, C, B, D]: keys and values."""
    if code_dtype is None:
        return KVCache(*(side.numbers(half) for half in both))
    (keys, key_scales), (values, value_scales) = (encode(half.to(side.stored), code_dtype) for half in both)
    return KVCache(*(half.to(side.device) for half in (keys, values, key_scales, value_scales)))


def _held(cache: KVCache) -> list[Tensor]:
    """The numbers that keys and values stand for."""
    pairs = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    return [held if scales is None else held.float() * scales.unsqueeze(-1) for held, scales in pairs]


def paged_attention(
    window: int = 0,
    soft_cap: float = 0.0,
    code_dtype: torch.dtype | None = None,
    heads: tuple[int, int, int] = (HEADS, KV_HEADS, HEAD_DIM),
) -> Check:
    """heads: how many of queries and of keys, and their width."""
    num_heads, kv_heads, width = heads

    def check(ops: Ops, side: Side, rows: slice) -> tuple[Tensor, ...]:
        part = padded(ops, side.normal(ROWS, (num_heads + 2 * kv_heads) * width)[rows])
        both = torch.randn(2, BLOCKS, kv_heads, BLOCK, width, generator=side.generator)
        both[:, 0], both[:, 1] = 0, torch.nan  # the null block has numbers always: the reference multiplies them by 0
        out = side.empty(len(part), num_heads * width)
        cache, metadata = _cache(side, both, code_dtype), _metadata(ops, side, rows)
        ops.paged_attention(out, part, cache, metadata, width**-0.5, window, soft_cap)
        return (out[: span(rows)],)

    return check
