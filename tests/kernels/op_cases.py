"""Random inputs for every op, its plain fp64 meaning, and a way to run it on any part of its rows.

An op that is new in the registry fails `test_ops` until it has a case here; an op may have several, "op: variant".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.noise import gumbel
from kernels.ops import Ops, accumulation_dtype
from tests.kernels.attention_cases import EVEN, MANY_HEADS, paged_attention, rotary_kv_write
from tests.kernels.case import Case, CaseMaker, normal, padded
from tests.kernels.group_cases import GROUP_CASES
from tests.kernels.sampling_cases import SAMPLING_CASES
from tests.kernels.verify_cases import VERIFY_CASES


def make_case(name: str, dtype: torch.dtype, seed: int, rows: int = 21) -> Case:
    """The case of that name in CASES."""
    return CASES[name](torch.Generator().manual_seed(seed), dtype, rows)


def _embedding(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    table = normal(generator, 50, 40, dtype=dtype)
    ids = torch.randint(50, (rows,), generator=generator)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, 40, dtype=dtype)
        ops.embedding(out, ids[first:last], table)
        return out

    return Case(run, table.double()[ids], rows)


def _gather_rows(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = normal(generator, rows, 40, dtype=dtype)
    order = torch.randperm(rows, generator=generator)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, 40, dtype=dtype)
        ops.gather_rows(out, x, order[first:last])
        return out

    return Case(run, x.double()[order], rows)


def _scatter_rows(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """Into the midst of a wider buffer, from columns of one; every fourth row goes nowhere."""
    x = normal(generator, rows, 60, dtype=dtype)[:, 7:47]
    order = torch.randperm(rows, generator=generator)
    kept = order % 4 != 3

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.full((rows + 2, 83), 9.0, dtype=dtype)
        ops.scatter_rows(out, x[first:last], order.masked_fill(~kept, -1)[first:last], 20)
        assert (out != 9).any(1).sum() == kept[first:last].sum(), "it wrote where no row goes"
        assert (out[:, [*range(20), *range(60, 83)]] == 9).all(), "it wrote beside its columns"
        return out[order[first:last], 20:60]

    return Case(run, torch.where(kept.unsqueeze(1), x.double(), 9.0), rows)


def _rms_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x, weight = normal(generator, rows, 83, dtype=dtype), normal(generator, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, 83, dtype=dtype)
        ops.rms_norm(out, x[first:last], weight, 1e-5)
        return out

    return Case(run, _norm_truth(x.double(), weight), rows)


def _add_rms_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x, residual = (normal(generator, rows, 83, dtype=dtype) for _ in range(2))
    weight = normal(generator, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out, summed = torch.empty(last - first, 83, dtype=dtype), residual[first:last].clone()
        ops.add_rms_norm(out, summed, x[first:last], weight, 1e-5)
        assert torch.equal(summed, residual[first:last] + x[first:last])
        return out

    return Case(run, _norm_truth((x + residual).double(), weight), rows)


def _offset_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """With an offset, and the result in the input's place."""
    x, weight = normal(generator, rows, 83, dtype=dtype), normal(generator, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.rms_norm(out, out, weight, 1e-5, 1.0)
        return out

    return Case(run, _norm_truth(x.double(), weight.double() + 1), rows)


def _group_rms_norm(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """Three groups of 19 in the midst of 83 columns."""
    x, weight = normal(generator, rows, 83, dtype=dtype), normal(generator, 19, dtype=dtype)

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
    x, residual = (normal(generator, rows, 83, dtype=dtype) for _ in range(2))

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = residual[first:last].clone()
        ops.add(out, x[first:last])
        return out

    return Case(run, residual.double() + x.double(), rows)


def _scale(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = normal(generator, rows, 83, dtype=dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.scale(out, 0.22)
        return out

    return Case(run, x.double() * 0.22, rows)


def _soft_cap(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    x = normal(generator, rows, 83, dtype=dtype) * torch.logspace(-2, 2, rows).unsqueeze(1).to(dtype)

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = x[first:last].clone()
        ops.soft_cap(out, 30.0)
        return out

    return Case(run, 30 * (x.double() / 30).tanh(), rows)


def _linear(inputs: int, outputs: int, *, biased: bool = True, wider: int = 0) -> CaseMaker:
    """wider: columns of a buffer on each side of the result."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        x, weight = normal(generator, rows, inputs, dtype=dtype), normal(generator, outputs, inputs, dtype=dtype)
        bias = normal(generator, outputs, dtype=dtype) if biased else None

        def run(ops: Ops, first: int, last: int) -> Tensor:
            part = padded(ops, x[first:last])
            buffer = torch.full((part.shape[0], outputs + 2 * wider), torch.nan, dtype=dtype)
            out = buffer[:, wider : wider + outputs]
            ops.linear(out, part, weight, bias)
            assert buffer.isnan().sum() == 2 * wider * len(buffer), "it wrote beside its columns, or left one out"
            return out[: last - first]

        return Case(run, x.double() @ weight.double().t() + (0 if bias is None else bias.double()), rows)

    return make


def _gated(op: str, activation: Callable[[Tensor], Tensor]) -> CaseMaker:
    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        gate_up = normal(generator, rows, 2 * 53, dtype=dtype) * 3

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
        x, router = normal(generator, rows, 40, dtype=dtype), normal(generator, 5, 40, dtype=dtype)
        gate_up, down = normal(generator, 5, 48, 40, dtype=dtype) / 4, normal(generator, 5, 40, 24, dtype=dtype)

        def run(ops: Ops, first: int, last: int) -> Tensor:
            out = torch.empty(last - first, 40, dtype=dtype)
            ops.mixture_mlp(out, x[first:last], router, gate_up.unbind(), down.unbind(), 2, normalise)
            return out

        weights, chosen = (x.double() @ router.double().t()).softmax(-1).topk(2)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        gate, up = torch.einsum("rh,eih->rei", x.double(), gate_up.double()).chunk(2, -1)
        everyone = torch.einsum("rei,ehi->reh", torch.nn.functional.silu(gate) * up, down.double())
        picked = everyone.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 40))
        return Case(run, (picked * weights.unsqueeze(-1)).sum(1), rows)

    return make


def _draw(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    scores = normal(generator, rows, 203, dtype=accumulation_dtype(dtype)) * 3
    scores[1::2].masked_fill_(torch.rand(rows // 2, 203, generator=generator) < 0.9, -torch.inf)
    addresses = torch.tensor([[(-1) ** row * (row << 40), 1000 + row, row % 3, row % 2] for row in range(rows)])

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.empty(last - first, dtype=torch.int64)
        ops.draw(out, scores[first:last].contiguous(), addresses[first:last])
        return out

    noise = torch.stack([gumbel(torch.arange(203), *address) for address in addresses.tolist()])
    return Case(run, (scores.double() + noise).argmax(1).double(), rows)


CASES: dict[str, CaseMaker] = {
    **GROUP_CASES,
    **SAMPLING_CASES,
    **VERIFY_CASES,
    "embedding": _embedding,
    "gather_rows": _gather_rows,
    "scatter_rows": _scatter_rows,
    "draw": _draw,
    "rms_norm": _rms_norm,
    "rms_norm: offset": _offset_norm,
    "add_rms_norm": _add_rms_norm,
    "group_rms_norm": _group_rms_norm,
    "add": _add,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "linear": _linear(75, 101),
    "linear: whole tiles": _linear(96, 160, biased=False),
    "linear: few outputs": _linear(64, 5),
    "linear: columns of a wider buffer": _linear(96, 64, wider=7),
    "silu_mul": _gated("silu_mul", torch.nn.functional.silu),
    "gelu_mul": _gated("gelu_mul", _gelu),
    "mixture_mlp": _mixture_mlp(normalise=True),
    "mixture_mlp: not normalised": _mixture_mlp(normalise=False),
    "rotary_kv_write": rotary_kv_write(),
    "rotary_kv_write: int8": rotary_kv_write(torch.int8),
    "paged_attention": paged_attention(),
    "paged_attention: short window": paged_attention(window=50),
    "paged_attention: long window, capped": paged_attention(window=300, soft_cap=5.0),
    "paged_attention: whole tiles": paged_attention(EVEN),
    "paged_attention: whole tiles, window": paged_attention(EVEN, window=70),
    "paged_attention: from the first key": paged_attention(EVEN, context=0),
    "paged_attention: many heads to one": paged_attention(MANY_HEADS, window=100),
    "paged_attention: int8": paged_attention(code_dtype=torch.int8),
    "paged_attention: int8, short window": paged_attention(window=50, code_dtype=torch.int8),
    "paged_attention: int8, long window, capped": paged_attention(window=300, soft_cap=5.0, code_dtype=torch.int8),
    "paged_attention: int8, whole tiles": paged_attention(EVEN, code_dtype=torch.int8),
    "paged_attention: int8, whole tiles, window": paged_attention(EVEN, window=70, code_dtype=torch.int8),
    "paged_attention: int8, from the first key": paged_attention(EVEN, context=0, code_dtype=torch.int8),
    "paged_attention: int8, many heads to one": paged_attention(MANY_HEADS, window=100, code_dtype=torch.int8),
}
