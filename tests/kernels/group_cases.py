"""Cases of the ops on weights in codes: every form of scale, both widths of code, and shapes that fit no tile."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.ops import Ops
from tests.kernels.case import Case, CaseMaker, normal, padded
from tests.kernels.group_quants import FORMS, random_group_quant


def group_linear(
    inputs: int,
    outputs: int,
    *,
    bits: int = 4,
    group_size: int = 32,
    form: str = "minimum",
    fp32_scales: bool = False,
    biased: bool = False,
    wider: int = 0,
    logits: bool = False,
) -> CaseMaker:
    """wider: columns of a buffer on each side of the result. logits: an fp32 result, whatever the activations are."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        weight = random_group_quant(form, bits, (outputs, inputs), group_size, generator.initial_seed())
        if fp32_scales:
            weight = replace(weight, scale=weight.scale.float() / 3)
        x = normal(generator, rows, inputs, dtype=dtype)
        bias = normal(generator, outputs, dtype=dtype) if biased else None
        kind = torch.float32 if logits and dtype == torch.bfloat16 else dtype

        def run(ops: Ops, first: int, last: int) -> Tensor:
            part = padded(ops, x[first:last])
            buffer = torch.full((part.shape[0], outputs + 2 * wider), torch.nan, dtype=kind)
            out = buffer[:, wider : wider + outputs]
            ops.group_linear(out, part, ops.prepare_group_quant(weight), bias)
            assert buffer.isnan().sum() == 2 * wider * len(buffer), "it wrote beside its columns, or left one out"
            return out[: last - first]

        truth = x.double() @ weight.dequantised(torch.float64).t()
        return Case(run, truth if bias is None else truth + bias.double(), rows)

    return make


def group_embedding(inputs: int, bits: int, group_size: int, form: str) -> CaseMaker:
    """From a table of 75 tokens."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        table = random_group_quant(form, bits, (75, inputs), group_size, generator.initial_seed())
        ids = torch.randint(75, (rows,), generator=generator)

        def run(ops: Ops, first: int, last: int) -> Tensor:
            out = torch.full((last - first, inputs), torch.nan, dtype=dtype)
            ops.group_embedding(out, ids[first:last], ops.prepare_group_quant(table))
            return out

        return Case(run, table.dequantised(torch.float64)[ids], rows)

    return make


def _prepare(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """What is prepared still stands for the same numbers: the rows of the unit matrix pick them out."""
    weight = random_group_quant("minimum", 4, (37, 96), 32, generator.initial_seed())
    x = torch.eye(96, dtype=dtype)[torch.randint(96, (rows,), generator=generator)]

    def run(ops: Ops, first: int, last: int) -> Tensor:
        part = padded(ops, x[first:last])
        out = torch.full((part.shape[0], 37), torch.nan, dtype=dtype)
        ops.group_linear(out, part, ops.prepare_group_quant(weight), None)
        return out[: last - first]

    return Case(run, x.double() @ weight.dequantised(torch.float64).t(), rows)


def _mixture(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
    """Four experts of width 32, one to a row; the choice is the largest score, far above the others."""
    x = normal(generator, rows, 64, dtype=dtype)
    chosen = torch.arange(rows) % 4
    x[:, :4] = 0
    x[torch.arange(rows), chosen] = 8
    router = torch.cat([torch.eye(4), torch.zeros(4, 60)], 1).to(dtype)
    seed = generator.initial_seed()
    gate_up = [random_group_quant("minimum", 4, (64, 64), 32, seed + expert) for expert in range(4)]
    down = [random_group_quant("zeros", 8, (64, 32), 32, seed + expert) for expert in range(4)]

    def run(ops: Ops, first: int, last: int) -> Tensor:
        out = torch.full((last - first, 64), torch.nan, dtype=dtype)
        one, two = ([ops.prepare_group_quant(weight) for weight in part] for part in (gate_up, down))
        ops.mixture_mlp(out, x[first:last], router, one, two, 1, True)
        return out

    wide = [(a.dequantised(torch.float64), b.dequantised(torch.float64)) for a, b in zip(gate_up, down, strict=True)]
    truth = torch.empty(rows, 64, dtype=torch.float64)
    for row, expert in enumerate(chosen.tolist()):
        gate, up = (wide[expert][0] @ x[row].double()).chunk(2)
        truth[row] = wide[expert][1] @ (torch.nn.functional.silu(gate) * up)
    return Case(run, truth, rows)


GROUP_CASES: dict[str, CaseMaker] = {
    "prepare_group_quant": _prepare,
    "group_linear": group_linear(576, 96),
    **{f"group_linear: 4 bits, {form}": group_linear(320, 101, form=form) for form in FORMS},
    **{f"group_linear: 8 bits, {form}": group_linear(320, 101, bits=8, form=form) for form in FORMS},
    **{
        f"group_linear: {bits} bits in groups of {size}": group_linear(
            256, 48, bits=bits, group_size=size, form="sub-scales and minima"
        )
        for bits in (4, 8)
        for size in (16, 64, 128)
    },
    "group_linear: 4 bits, one group a row": group_linear(75, 37, group_size=75, form="zeros", biased=True),
    "group_linear: 8 bits, one group a row": group_linear(75, 37, bits=8, group_size=1 << 20, wider=3),
    "group_linear: groups of 16, a short one last": group_linear(72, 33, group_size=16, form="zeros"),
    "group_linear: groups of 128, a short one last": group_linear(200, 48, group_size=128, biased=True),
    "group_linear: groups that fit no tile": group_linear(
        120, 20, group_size=40, form="permuted", biased=True, wider=2
    ),
    "group_linear: permuted and padded": group_linear(200, 80, group_size=64, form="permuted", biased=True, wider=5),
    "group_linear: fp32 scales": group_linear(96, 80, bits=8, group_size=16, form="zeros", fp32_scales=True),
    "group_linear: logits": group_linear(576, 203, bits=8, form="zero", logits=True),
    "group_linear: few outputs": group_linear(64, 5, wider=1),
    "group_embedding": group_embedding(96, 4, 32, "minimum"),
    "group_embedding: 8 bits, one group a row": group_embedding(83, 8, 83, "zeros"),
    "group_embedding: groups of 16": group_embedding(96, 4, 16, "sub-scales and minima"),
    "group_embedding: permuted": group_embedding(83, 4, 83, "permuted"),
    "group_embedding: groups that fit no tile": group_embedding(96, 8, 24, "minimum"),
    "mixture_mlp: in codes": _mixture,
}
