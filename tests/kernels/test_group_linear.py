"""Products of weights in codes in C++: against torch's own kernels, what they take, and what they cost in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cpu_ops.group_linear import multiplies_bytes
from kernels.group_quant import GroupQuant, pack_nibbles
from kernels.ops import Ops
from kernels.reference import group_linear as reference
from kernels.registry import load_ops
from tests.kernels.group_quants import FORMS, random_group_quant


@pytest.fixture(scope="module")
def ops() -> Ops:
    found, choices = load_ops(["cpu_ops"], torch.bfloat16, torch.device("cpu"), num_threads=2)
    chosen = {choice.op: choice for choice in choices}
    assert chosen["group_linear"].backend == "cpu_ops", chosen["group_linear"].reason
    return found


def product(ops: Ops, x: torch.Tensor, weight: GroupQuant) -> torch.Tensor:
    out = torch.full((len(x), weight.shape[0]), torch.nan, dtype=torch.float32)
    ops.group_linear(out, x, ops.prepare_group_quant(weight), None)
    return out


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_equals_the_int4_product_of_torch(ops: Ops, group_size: int, rows: int) -> None:
    """Torch's is scale * (code - 8) + zero with both of bf16."""
    generator = torch.Generator().manual_seed(rows)
    outputs, inputs = 96, 512
    codes = torch.randint(16, (outputs, inputs), generator=generator, dtype=torch.int32)
    scale, zero = (torch.randn(outputs, inputs // group_size, generator=generator) / 16 for _ in range(2))
    scale, zero = scale.bfloat16(), zero.bfloat16()
    minimum = zero.float() - 8 * scale.float()  # in fp32, or it would lose what torch keeps
    weight = GroupQuant(
        shape=(outputs, inputs),
        bits=4,
        group_size=group_size,
        codes=pack_nibbles(codes.to(torch.uint8)),
        scale=scale.float(),
        minimum=minimum,
    )
    x = torch.randn(rows, inputs, generator=generator).bfloat16()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    pairs = torch.stack([scale.t(), zero.t()], dim=2).contiguous()
    expected = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group_size, pairs).float()
    error = (product(ops, x, weight) - expected).abs().max()
    assert error < 1.2e-2 * expected.abs().max()


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_equals_the_int8_product_of_torch(ops: Ops, rows: int) -> None:
    """Torch's has signed codes and one scale a row."""
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(-128, 128, (64, 256), generator=generator, dtype=torch.int8)
    scale = (torch.rand(64, 1, generator=generator) / 64).bfloat16()
    weight = GroupQuant(
        shape=(64, 256), bits=8, group_size=256, codes=(codes.int() + 128).to(torch.uint8), scale=scale, zero=128
    )
    x = torch.randn(rows, 256, generator=generator).bfloat16()
    expected = torch.ops.aten._weight_int8pack_mm(x, codes, scale.flatten()).float()
    error = (product(ops, x, weight) - expected).abs().max()
    assert error < 1.2e-2 * expected.abs().max()


@pytest.mark.parametrize("bits", [4, 8])
def test_every_code_is_exact(ops: Ops, bits: int) -> None:
    """One input picks its code; scale 1 and minimum 0 leave it as it is."""
    codes = torch.arange(1 << bits, dtype=torch.uint8).repeat(32, 1).t().contiguous()
    ones = torch.ones(len(codes), 1, dtype=torch.float16)
    weight = GroupQuant(
        shape=(len(codes), 32), bits=bits, group_size=32, codes=pack_nibbles(codes) if bits == 4 else codes, scale=ones
    )
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(product(ops, torch.eye(32, dtype=dtype), weight), codes.t().float())


@pytest.mark.parametrize("activation_bits", [16, 8])
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 33, 70, 300])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 128), (4, 16)])
def test_a_row_has_the_same_bits_in_any_batch(
    ops: Ops, rows: int, bits: int, group_size: int, activation_bits: int
) -> None:
    """Enough inputs and outputs for several slices, and for blocks of rows."""
    codes = random_group_quant("minimum", bits, (200, 1536), group_size, seed=4)
    weight = ops.prepare_group_quant(codes.with_activation_bits(activation_bits))
    x = torch.randn(300, 1536, generator=torch.Generator().manual_seed(5))
    for dtype in (torch.bfloat16, torch.float32):
        part = x.to(dtype)
        together, apart = (torch.empty(count, 200, dtype=dtype) for count in (300, rows))
        ops.group_linear(together, part, weight, None)
        ops.group_linear(apart, part[300 - rows :], weight, None)
        assert torch.equal(apart, together[300 - rows :])


@pytest.mark.parametrize("activation_bits", [16, 8])
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_keep_a_rows_bits(ops: Ops, seed: int, activation_bits: int) -> None:
    """Rows 1 to a prefill chunk, outputs and inputs that fill no panel or tile, groups of every size, any form."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    outputs, inputs = pick(5, 16, 33, 48, 100, 272), pick(32, 72, 200, 576, 1000)
    form, bits = FORMS[seed % len(FORMS)], pick(4, 8)
    sub = form.startswith("sub")
    group_size = pick(16, 32, 64, 128) if sub else pick(16, 32, 64, 96, 128, 160, 1 << 20)
    codes = random_group_quant(form, bits, (outputs, inputs), group_size, seed)
    weight = ops.prepare_group_quant(codes.with_activation_bits(activation_bits))
    x = torch.randn(520, inputs, generator=generator).bfloat16()
    whole = torch.empty(len(x), outputs)
    ops.group_linear(whole, x, weight, None)
    for rows in (*range(1, 18), 31, 64, 65, 200):
        first = int(torch.randint(len(x) - rows, (), generator=generator))
        part = torch.empty(rows, outputs)
        ops.group_linear(part, x[first : first + rows], weight, None)
        assert torch.equal(part, whole[first : first + rows]), (rows, first)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("inputs", "group_size"), [(80, 16), (576, 32), (640, 64), (512, 256), (1000, 1 << 20)])
def test_activations_of_8_bits_are_rounded_as_the_reference_rounds_them(
    ops: Ops, bits: int, form: str, inputs: int, group_size: int
) -> None:
    """Some activations are a thousand times larger than the others, a piece is all zeros, another one tiny."""
    weight = random_group_quant(form, bits, (53, inputs), group_size, seed=inputs).with_activation_bits(8)
    x = torch.randn(19, inputs, generator=torch.Generator().manual_seed(bits)).bfloat16()
    x[:, ::40] *= 1000
    x[3, :32], x[4, 32:64] = 0, 1e-38
    prepared = ops.prepare_group_quant(weight)
    assert prepared.activation_bits == (8 if multiplies_bytes(bits) else 16)
    rounded = weight.rounded_activations(x) if prepared.activation_bits == 8 else x.double()
    expected = rounded @ weight.dequantised(torch.float64).t()
    found = product(ops, x, weight)
    lost = 3e-5 if prepared.activation_bits == 8 else 4e-4  # of 16 bits: 2^-16 of the largest near it
    assert (found.double() - expected).abs().max() < lost * expected.abs().max()
    again = torch.empty_like(found)
    reference.group_linear(again, x, weight.with_activation_bits(prepared.activation_bits), None)
    assert (found - again).abs().max() < lost * expected.abs().max()


def test_activations_of_8_bits_lose_at_most_half_a_step() -> None:
    weight = random_group_quant("permuted", 4, (8, 200), 64, seed=1)
    x = torch.randn(20, 200, generator=torch.Generator().manual_seed(9)).bfloat16()
    assert weight.perm is not None
    order = weight.perm.long()
    off = (weight.rounded_activations(x) - x.double()).abs()[:, order]
    for first in range(0, 200, 32):
        peak = x[:, order[first : first + 32]].double().abs().amax(1, keepdim=True)
        assert (off[:, first : first + 32] <= peak / 254 * (1 + 1e-4)).all()
    assert off.max() > 0


def test_without_the_instruction_activations_stay_as_they_are(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_group_quant("minimum", 4, (48, 256), 32, seed=3)
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    plain = product(ops, x, weight)
    monkeypatch.setattr("kernels.cpu_ops.group_linear.multiplies_bytes", lambda bits: False)
    assert ops.prepare_group_quant(weight.with_activation_bits(8)).activation_bits == 16
    assert torch.equal(product(ops, x, weight.with_activation_bits(8)), plain)


@pytest.mark.parametrize("bits", [4, 8])
def test_sums_lose_little(ops: Ops, bits: int) -> None:
    """At most 2^-15 of a group's largest activation, and some are a thousand times larger than the others."""
    weight = random_group_quant("zeros", bits, (64, 640), 32, seed=9)
    x = torch.randn(20, 640, generator=torch.Generator().manual_seed(9)).bfloat16()
    x[:, ::40] *= 1000
    wide = weight.dequantised(torch.float64)
    peaks = x.double().abs().view(20, -1, 32).amax(2).repeat_interleave(32, 1)
    error = (product(ops, x, weight).double() - x.double() @ wide.t()).abs()
    assert (error / (peaks @ wide.abs().t())).max() < 2**-15


@pytest.mark.parametrize("activation_bits", [16, 8])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_numbers_do_not_overflow(ops: Ops, bits: int, activation_bits: int) -> None:
    codes = torch.full((16, 256 * bits), 255, dtype=torch.uint8)  # all ones: 15 or 255 each
    scale = torch.ones(16, 1, dtype=torch.float16)
    weight = GroupQuant(shape=(16, 2048), bits=bits, group_size=2048, codes=codes, scale=scale)
    weight = weight.with_activation_bits(activation_bits)
    for value in (255 / 128, -255 / 128, 255 * 2.0**100):
        x = torch.full((3, 2048), value).bfloat16()
        expected = torch.full((3, 16), float(x[0, 0].double() * ((1 << bits) - 1) * 2048))
        assert torch.allclose(product(ops, x, weight), expected, rtol=1e-6)


@pytest.mark.parametrize("activation_bits", [16, 8])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_spoils_its_own_row_alone(ops: Ops, value: float, activation_bits: int) -> None:
    weight = random_group_quant("minimum", 4, (48, 256), 32, seed=3).with_activation_bits(activation_bits)
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    clean = product(ops, x, weight)
    x[4, 100] = value
    found = product(ops, x, weight)
    assert not found[4].isfinite().any()
    others = torch.arange(9) != 4
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("form", FORMS)
def test_prepared_weights_take_no_more_memory(ops: Ops, form: str) -> None:
    for bits, group_size in ((4, 32), (8, 16), (4, 128)):
        weight = random_group_quant(form, bits, (48, 256), group_size, seed=1)
        prepared = ops.prepare_group_quant(weight)
        assert prepared.layout == "tiles"
        assert prepared.nbytes == weight.nbytes
        assert {name: tensor.dtype for name, tensor in prepared.tensors().items()} == {
            name: tensor.dtype for name, tensor in weight.tensors().items()
        }


def test_what_is_prepared_may_lie_in_memory_any_way(ops: Ops) -> None:
    weight = random_group_quant("permuted", 4, (48, 128), 32, seed=6)
    tensors = weight.tensors()
    across = {name: tensors[name].t().contiguous().t() for name in ("codes", "scale", "zero")}
    across["perm"] = tensors["perm"].repeat_interleave(2)[::2]
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(7)).bfloat16()
    assert torch.equal(product(ops, x, weight.with_tensors(across)), product(ops, x, weight))


def test_groups_that_no_tile_fits_stay_in_rows(ops: Ops) -> None:
    weight = random_group_quant("zeros", 4, (8, 120), 40, seed=2)
    assert ops.prepare_group_quant(weight) is weight
    halves = replace(random_group_quant("minimum", 4, (8, 64), 32, seed=2), minimum=torch.zeros(8, 2))
    assert ops.prepare_group_quant(halves) is halves  # scales and minima of different types


def test_what_c_cannot_read_is_refused(ops: Ops) -> None:
    weight = ops.prepare_group_quant(random_group_quant("minimum", 4, (8, 64), 32, seed=3))
    x = torch.zeros(2, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"contiguous rows, got torch.bfloat16 on cpu, strides \(1, 2\)"):
        ops.group_linear(torch.empty(8, 2, dtype=torch.bfloat16).t(), x, weight, None)
    with pytest.raises(TypeError, match=r"cpu_ops wants a contiguous CPU tensor of torch.bfloat16"):
        ops.group_linear(torch.empty(2, 8, dtype=torch.bfloat16), x, weight, torch.zeros(8))
