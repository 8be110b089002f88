"""Random inputs for every op, its plain fp64 meaning, and a way to run it on any part of its rows.

An op that is new in the registry fails `test_ops` until it has a case here; an op may have several, "op: variant".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.noise import gumbel
from kernels.ops import AttentionMetadata, Ops, accumulation_dtype

BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 6, 2, 24
QKV_WIDTH = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM


@dataclass(frozen=True, slots=True)
class Case:
    """run(ops, first, last) gives the op's output for rows first..last - 1 of the same data; truth is for all rows."""

    run: Callable[[Ops, int, int], Tensor]
    truth: Tensor
    rows: int


CaseMaker = Callable[[torch.Generator, torch.dtype, int], Case]


def make_case(name: str, dtype: torch.dtype, seed: int, rows: int = 21) -> Case:
    """The case of that name in CASES."""
    return CASES[name](torch.Generator().manual_seed(seed), dtype, rows)


def _normal(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=generator).to(dtype)


def _padded(ops: Ops, x: Tensor) -> Tensor:
    """Rows padded with zeros to what the op's backend wants."""
    missing = -x.shape[0] % ops.row_alignment
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


def _embedding(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    table = _normal(generator, 50, 40, dtype=dtype)
    ids = torch.randint(50, (rows,), generator=generator)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, 40, dtype=dtype)
        ops.embedding(out, ids[first:last], table)
        return out

    return Case(run, table.double()[ids], rows)


def _gather_rows(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = _normal(generator, rows, 40, dtype=dtype)
    order = torch.randperm(rows, generator=generator)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, 40, dtype=dtype)
        ops.gather_rows(out, x, order[first:last])
        return out

    return Case(run, x.double()[order], rows)


def _rms_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x, weight = _normal(generator, rows, 83, dtype=dtype), _normal(generator, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, 83, dtype=dtype)
        ops.rms_norm(out, x[first:last], weight, 1e-5)
        return out

    return Case(run, _norm_truth(x.double(), weight), rows)


def _add_rms_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x, residual = (_normal(generator, rows, 83, dtype=dtype) for _ in range(2))
    weight = _normal(generator, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out, summed = torch.empty(last - first, 83, dtype=dtype), residual[first:last].clone()
        ops.add_rms_norm(out, summed, x[first:last], weight, 1e-5)
        assert torch.equal(summed, residual[first:last] + x[first:last])
        return out

    return Case(run, _norm_truth((x + residual).double(), weight), rows)


def _offset_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """With an offset, and the result in the input's place."""
    x, weight = _normal(generator, rows, 83, dtype=dtype), _normal(generator, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.rms_norm(out, out, weight, 1e-5, 1.0)
        return out

    return Case(run, _norm_truth(x.double(), weight.double() + 1), rows)


def _group_rms_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """Three groups of 19 in the midst of 83 columns."""
    x, weight = _normal(generator, rows, 83, dtype=dtype), _normal(generator, 19, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.group_rms_norm(out, 10, 3, weight, 1e-5, 1.0)
        return out

    truth = x.double().clone()
    middle = truth[:, 10:67].view(rows, 3, 19)
    truth[:, 10:67] = _norm_truth(middle, weight.double() + 1).flatten(1)
    return Case(run, truth, rows)


def _norm_truth(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


def _add(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x, residual = (_normal(generator, rows, 83, dtype=dtype) for _ in range(2))

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = residual[first:last].clone()
        ops.add(out, x[first:last])
        return out

    return Case(run, residual.double() + x.double(), rows)


def _scale(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = _normal(generator, rows, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.scale(out, 0.22)
        return out

    return Case(run, x.double() * 0.22, rows)


def _soft_cap(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = _normal(generator, rows, 83, dtype=dtype) * torch.logspace(-2, 2, rows).unsqueeze(1).to(dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.soft_cap(out, 30.0)
        return out

    return Case(run, 30 * (x.double() / 30).tanh(), rows)


def _linear(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = _normal(generator, rows, 75, dtype=dtype)
    weight, bias = _normal(generator, 101, 75, dtype=dtype), _normal(generator, 101, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        part = _padded(ops, x[first:last])
        out = torch.empty(part.shape[0], 101, dtype=dtype)
        ops.linear(out, part, weight, bias)
        return out[: last - first]

    return Case(run, x.double() @ weight.double().t() + bias.double(), rows)


def _gated(op: str, activation: Callable[[Tensor], Tensor]) -> CaseMaker:
    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        gate_up = _normal(generator, rows, 2 * 53, dtype=dtype) * 3

        def run(ops: Ops, first: int, last: int) -> Tensor:
            out = torch.empty(last - first, 53, dtype=dtype)
            getattr(ops, op)(out, gate_up[first:last])
            return out

        gate, up = gate_up.double().chunk(2, -1)
        return Case(run, activation(gate) * up, rows)

    return make


def _gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


def _mixture_mlp(normalise: bool) -> CaseMaker:
    """Five experts of width 24, two to a row."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        x, router = _normal(generator, rows, 40, dtype=dtype), _normal(generator, 5, 40, dtype=dtype)
        gate_up, down = _normal(generator, 5, 48, 40, dtype=dtype) / 4, _normal(generator, 5, 40, 24, dtype=dtype)

        def run(ops: Ops, first: int, last: int) -> Tensor:
            out = torch.empty(last - first, 40, dtype=dtype)
            ops.mixture_mlp(out, x[first:last], router, gate_up, down, 2, normalise)
            return out

        weights, chosen = (x.double() @ router.double().t()).softmax(-1).topk(2)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        gate, up = torch.einsum("rh,eih->rei", x.double(), gate_up.double()).chunk(2, -1)
        everyone = torch.einsum("rei,ehi->reh", torch.nn.functional.silu(gate) * up, down.double())
        picked = everyone.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 40))
        return Case(run, (picked * weights.unsqueeze(-1)).sum(1), rows)

    return make


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Rows of one request at positions start, start + 1, ...; its block table is a random permutation's part."""

    start: int
    table: list[int]


def _metadata(sequence: _Sequence, first: int, last: int, alignment: int) -> AttentionMetadata:
    rows = last - first
    positions = torch.arange(sequence.start + first, sequence.start + last)
    slots = torch.tensor([sequence.table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions.tolist()])
    padding = -rows % alignment
    return AttentionMetadata(
        positions=torch.cat([positions, torch.zeros(padding, dtype=torch.int64)]),
        slot_mapping=torch.cat([slots, torch.full((padding,), -1)]),
        block_tables=torch.tensor([sequence.table], dtype=torch.int32),
        query_start_loc=[0, rows],
        row_request=torch.tensor([0] * rows + [-1] * padding, dtype=torch.int32),
    )


def _cache(generator: torch.Generator, dtype: torch.dtype, blocks: int) -> Tensor:
    return _normal(generator, blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype=dtype)


def _rotary_kv_write(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    qkv = _normal(generator, rows, QKV_WIDTH, dtype=dtype)
    angles = torch.rand(100, HEAD_DIM // 2, generator=generator, dtype=torch.float64) * 6
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    sequence = _Sequence(13, torch.randperm(12, generator=generator).add(1).tolist())

    def run(ops: Ops, first: int, last: int) -> Tensor:
        """Queries, then the keys and values read back from the cache."""
        part, (keys, values) = _padded(ops, qkv[first:last]).clone(), _empty_caches(dtype)
        metadata = _metadata(sequence, first, last, ops.row_alignment)
        ops.rotary_kv_write(part, cos, sin, keys, values, metadata, NUM_HEADS)
        slots = metadata.slot_mapping[: last - first]
        written = [c[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE].flatten(1) for c in (keys, values)]
        assert int((keys.abs().sum((1, 3)) > 0).sum()) == last - first, "a row wrote where it should not"
        return torch.cat([part[: last - first, : NUM_HEADS * HEAD_DIM], *written], 1)

    split = qkv.double().view(rows, -1, HEAD_DIM).clone()
    rows_cos, rows_sin = (t.double()[13 : 13 + rows].unsqueeze(1) for t in (cos, sin))
    turned = split[:, : NUM_HEADS + NUM_KV_HEADS]
    one, two = turned.chunk(2, -1)
    split[:, : NUM_HEADS + NUM_KV_HEADS] = torch.cat(
        [one * rows_cos - two * rows_sin, two * rows_cos + one * rows_sin], -1
    )
    return Case(run, split.flatten(1), rows)


def _empty_caches(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (13, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def _paged_attention(window: int, soft_cap: float) -> CaseMaker:
    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        return _attention_case(generator, dtype, rows, window, soft_cap)

    return make


def _attention_case(generator: torch.Generator, dtype: torch.dtype, rows: int, window: int, soft_cap: float) -> Case:
    context = 600  # several splits
    qkv = _normal(generator, rows, QKV_WIDTH, dtype=dtype)
    blocks = -(-(context + rows) // BLOCK_SIZE)
    table = torch.randperm(blocks, generator=generator).add(1).tolist()
    keys, values = _cache(generator, dtype, blocks + 1), _cache(generator, dtype, blocks + 1)
    sequence = _Sequence(context, table)
    scale = HEAD_DIM**-0.5

    def run(ops: Ops, first: int, last: int) -> Tensor:
        part = _padded(ops, qkv[first:last])
        out = torch.full((part.shape[0], NUM_HEADS * HEAD_DIM), torch.nan, dtype=dtype)
        metadata = _metadata(sequence, first, last, ops.row_alignment)
        ops.paged_attention(out, part, keys, values, metadata, scale, window, soft_cap)
        assert not out.isnan().any()
        return out[: last - first]

    flat_keys, flat_values = (
        c.double()[table].transpose(1, 2).flatten(0, 1).repeat_interleave(NUM_HEADS // NUM_KV_HEADS, 1)
        for c in (keys, values)
    )
    queries = qkv.double()[:, : NUM_HEADS * HEAD_DIM].view(rows, NUM_HEADS, HEAD_DIM)
    scores = torch.einsum("rhd,khd->rhk", queries, flat_keys) * scale
    if soft_cap:
        scores = soft_cap * (scores / soft_cap).tanh()
    distance = torch.arange(context, context + rows).unsqueeze(1) - torch.arange(len(flat_keys))
    visible = (distance >= 0) & (distance < (window or len(flat_keys)))
    weights = scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1)
    return Case(run, torch.einsum("rhk,khd->rhd", weights, flat_values).flatten(1), rows)


# "op" or "op: variant".
def _draw(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    scores = _normal(generator, rows, 203, dtype=accumulation_dtype(dtype)) * 3
    scores[1::2].masked_fill_(torch.rand(rows // 2, 203, generator=generator) < 0.9, -torch.inf)
    addresses = torch.tensor([[(-1) ** row * (row << 40), 1000 + row, row % 3, row % 2] for row in range(rows)])

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, dtype=torch.int64)
        ops.draw(out, scores[first:last].contiguous(), addresses[first:last])
        return out

    noise = torch.stack([gumbel(torch.arange(203), *address) for address in addresses.tolist()])
    return Case(run, (scores.double() + noise).argmax(1).double(), rows)


CASES: dict[str, CaseMaker] = {
    "embedding": _embedding,
    "gather_rows": _gather_rows,
    "draw": _draw,
    "rms_norm": _rms_norm,
    "rms_norm: offset": _offset_norm,
    "add_rms_norm": _add_rms_norm,
    "group_rms_norm": _group_rms_norm,
    "add": _add,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "linear": _linear,
    "silu_mul": _gated("silu_mul", torch.nn.functional.silu),
    "gelu_mul": _gated("gelu_mul", _gelu),
    "mixture_mlp": _mixture_mlp(normalise=True),
    "mixture_mlp: not normalised": _mixture_mlp(normalise=False),
    "rotary_kv_write": _rotary_kv_write,
    "paged_attention": _paged_attention(0, 0.0),
    "paged_attention: short window": _paged_attention(50, 0.0),
    "paged_attention: long window, capped": _paged_attention(300, 5.0),
}
