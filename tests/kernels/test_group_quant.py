"""What can be done with weights in codes, against the definition spelled out weight by weight."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from kernels.group_quant import GroupQuant, pack_nibbles, stack_rows
from tests.kernels.group_quants import FORMS, random_group_quant


def by_definition(weight: GroupQuant) -> torch.Tensor:
    """Every weight in exact arithmetic, rounded to fp64 once; inputs in the order of the activations."""
    outputs, inputs = weight.shape
    found = torch.zeros(outputs, inputs, dtype=torch.float64)
    for n in range(outputs):
        for k in range(inputs):
            group = k // weight.group_size
            byte = int(weight.codes[n, k if weight.bits == 8 else k // 2])
            code = byte if weight.bits == 8 else (byte >> 4 if k % 2 else byte & 15)
            scale = Fraction(float(weight.scale[n, group // weight.sub_groups]))
            if weight.sub_scale is not None:
                scale *= int(weight.sub_scale[n, group])
            if weight.minimum is None:
                zero = weight.zero if isinstance(weight.zero, int) else int(weight.zero[n, group])
                minimum = -scale * zero
            else:
                minimum = Fraction(float(weight.minimum[n, group // weight.sub_groups]))
                if weight.sub_minimum is not None:
                    minimum *= int(weight.sub_minimum[n, group])
            place = k if weight.perm is None else int(weight.perm[k])
            found[n, place] = float(scale * code + minimum)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("bits", "inputs", "group_size"), [(4, 64, 32), (8, 64, 16), (4, 75, 75), (8, 96, 64)])
def test_dequantised_is_the_definition(form: str, bits: int, inputs: int, group_size: int) -> None:
    weight = random_group_quant(form, bits, (5, inputs), group_size, seed=1)
    assert torch.equal(weight.dequantised(torch.float64), by_definition(weight))
    assert (weight.dequantised() - by_definition(weight)).abs().max() < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_stacking_undo_each_other(form: str) -> None:
    weight = random_group_quant(form, 4, (12, 64), 32, seed=2)
    apart = [weight.rows(slice(0, 5)), weight.rows(torch.arange(5, 12))]
    together = stack_rows(apart)
    assert together.shape == (12, 64)
    assert together.tensors().keys() == weight.tensors().keys()
    for name, tensor in weight.tensors().items():
        assert torch.equal(together.tensors()[name], tensor), name
    assert weight.nbytes == sum(tensor.nbytes for tensor in weight.tensors().values())


def test_only_alike_parts_can_be_one_matrix() -> None:
    weight = random_group_quant("zeros", 4, (8, 64), 32, seed=3)
    others = [
        random_group_quant("zeros", 8, (8, 64), 32, seed=3),
        random_group_quant("zeros", 4, (8, 64), 64, seed=3),
        random_group_quant("minimum", 4, (8, 64), 32, seed=3),
        random_group_quant("zero", 4, (8, 64), 32, seed=3),
        replace(weight, scale=weight.scale.to(torch.bfloat16)),
        replace(weight, perm=torch.randperm(64, dtype=torch.int32)),
    ]
    assert weight.like(random_group_quant("zeros", 4, (3, 64), 32, seed=4))
    for other in others:
        assert not weight.like(other)
        with pytest.raises(ValueError, match="cannot be one matrix"):
            stack_rows([weight, other])


def test_nibbles_of_an_odd_number_of_inputs() -> None:
    codes = torch.tensor([[1, 2, 3], [15, 0, 7]], dtype=torch.uint8)
    assert torch.equal(pack_nibbles(codes), torch.tensor([[0x21, 0x03], [0x0F, 0x07]], dtype=torch.uint8))


def test_another_layout_is_not_taken_for_rows() -> None:
    weight = replace(random_group_quant("zeros", 4, (8, 64), 32, seed=5), layout="tiles")
    for use in (weight.dequantised, weight.expanded_scales, lambda: weight.rows(slice(0, 2))):
        with pytest.raises(ValueError, match='laid out as "tiles"'):
            use()
