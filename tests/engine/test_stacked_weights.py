"""Fused matrices: what becomes one, what stays apart, and that the product is the same either way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.checkpoint import CheckpointError
from engine.layers.linear import ColumnParallelLinear, Weight
from engine.layers.mixture import MixtureMLP
from kernels.group_quant import GroupQuant
from kernels.ops import Ops
from kernels.registry import load_ops
from tests.engine.test_sizing import SMOLLM
from tests.kernels.group_quants import random_group_quant

CPU, INPUTS, SIZES = torch.device("cpu"), 64, (24, 16, 8)


def ops() -> Ops:
    return load_ops(["cpu_ops"], torch.float32, CPU, num_threads=1)[0]


def numbers(part: int) -> torch.Tensor:
    return torch.randn(SIZES[part], INPUTS, generator=torch.Generator().manual_seed(part))


def codes(part: int, form: str = "zeros") -> GroupQuant:
    return random_group_quant(form, 4, (SIZES[part], INPUTS), 32, seed=part)


def dense(weight: Weight) -> torch.Tensor:
    return weight.dequantised() if isinstance(weight, GroupQuant) else weight


PERM = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(9)).to(torch.int32)
MIXTURES: dict[str, tuple[list[Weight], int]] = {
    "numbers": ([numbers(0), numbers(1), numbers(2)], 1),
    "codes": ([codes(0), codes(1), codes(2)], 1),
    "one perm": ([replace(codes(part), perm=PERM.clone()) for part in range(3)], 1),
    "two perms": ([replace(codes(0), perm=PERM), replace(codes(1), perm=PERM.flip(0)), codes(2)], 3),
    "another format": ([codes(0), codes(1), codes(2, "minimum")], 2),
    "numbers between codes": ([codes(0), numbers(1), codes(2)], 3),
    "codes after numbers": ([numbers(0), codes(1), codes(2)], 2),
}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("bias", [False, True])
def test_a_fused_product_is_that_of_its_parts(name: str, order: tuple[int, ...], bias: bool) -> None:
    parts, pieces = MIXTURES[name]
    layer = ColumnParallelLinear(ops(), INPUTS, SIZES, bias=bias, dtype=torch.float32, device=CPU)
    for part in order:
        layer.load_part(part, parts[part])
        if bias:
            layer.load_bias(torch.full((SIZES[part],), float(part)), part)
    assert len(layer.weight.pieces) == pieces
    x = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(7))
    out = torch.full((5, sum(SIZES)), torch.nan)
    layer.forward(out, x)
    truth = torch.cat(
        [x.double() @ dense(part).double().t() + part_bias * bias for part_bias, part in enumerate(parts)], 1
    )
    assert (out - truth).abs().max() < 2e-6 * truth.abs().max()
    held = sum(weight.nbytes for weight in layer.weight.weights())
    own = sum(part.nbytes for part in parts) - PERM.nbytes * 2 * (name == "one perm")
    assert own <= held <= own * 1.7  # a kernel's layout may pad outputs to 16


def test_an_expert_whose_two_cannot_be_one_matrix_is_refused() -> None:
    config = replace(SMOLLM, hidden_size=INPUTS, intermediate_size=24, num_experts=2, num_experts_per_token=1)
    mixture = MixtureMLP(ops(), config, torch.float32, CPU)
    mixture.load("experts.0.gate_proj.weight", replace(codes(0), perm=PERM))
    mixture.load("experts.0.up_proj.weight", replace(codes(0), perm=PERM.clone()))
    mixture.load("experts.1.up_proj.weight", replace(codes(0), perm=PERM))
    with pytest.raises(CheckpointError, match=r"expert 1: gate_proj and up_proj have different formats or orders"):
        mixture.load("experts.1.gate_proj.weight", replace(codes(0), perm=PERM.flip(0)))


def test_a_matrix_that_is_stored_fused() -> None:
    weight = random_group_quant("minimum", 8, (sum(SIZES), INPUTS), 32, seed=5)
    layer = ColumnParallelLinear(ops(), INPUTS, SIZES, bias=False, dtype=torch.float32, device=CPU)
    layer.load(weight)
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(7))
    out = torch.empty(3, sum(SIZES))
    layer.forward(out, x)
    assert (out - x.double() @ weight.dequantised(torch.float64).t()).abs().max() < 1e-5
