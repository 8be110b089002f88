"""The products in Triton: how words become operands, how sums are split, and every group size there can be."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.reference import group_linear as reference
from kernels.triton_ops import splits
from kernels.triton_ops.group_embedding import group_embedding
from kernels.triton_ops.group_linear import field, group_linear, prepare_group_quant
from kernels.triton_ops.linear import linear
from tests.kernels.group_quants import random_group_quant


@triton.jit
def _fields(
    out: tl.tensor, words: tl.tensor, SHIFT: tl.constexpr, MASK: tl.constexpr, BASE: tl.constexpr, SIZE: tl.constexpr
) -> None:
    place = tl.arange(0, SIZE)
    tl.store(out + place, field(tl.load(words + place), SHIFT, MASK, BASE))


def every_word(shift: int, mask: int, base: int, dtype: torch.dtype) -> torch.Tensor:
    """What `field` makes of each of the 65536 words, as numbers: fp64."""
    words = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    out = torch.empty_like(words)
    _fields[(1,)](out, words, SHIFT=shift, MASK=mask, BASE=base, SIZE=1 << 16)
    return out.view(dtype).double()


@pytest.mark.parametrize("place", range(4))
def test_a_code_of_four_bits_is_a_number_of_sixteen_bits(place: int) -> None:
    code = (torch.arange(1 << 16) >> (4 * place)) & 15
    assert torch.equal(every_word(4 * place - 6, 0x03C0, 0x4C00, torch.float16), 16.0 + code)
    assert torch.equal(every_word(4 * place - 3, 0x0078, 0x4180, torch.bfloat16), 16.0 + code)


@pytest.mark.parametrize("place", range(2))
def test_a_code_of_eight_bits_is_one_number_of_fp16_or_two_of_bf16(place: int) -> None:
    code = (torch.arange(1 << 16) >> (8 * place)) & 255
    assert torch.equal(every_word(8 * place, 0x00FF, 0x6400, torch.float16), 1024.0 + code)
    lower = every_word(8 * place - 3, 0x0078, 0x4180, torch.bfloat16)
    upper = every_word(8 * place + 1, 0x0078, 0x4380, torch.bfloat16)
    assert torch.equal(lower + upper, 272.0 + code)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [8, 16, 20, 32, 33, 48, 64, 96, 100, 128, 192, 300])
def test_any_group_size_is_served(group_size: int, bits: int) -> None:
    inputs, outputs = 300, 24
    weight = random_group_quant("minimum", bits, (outputs, inputs), group_size, seed=group_size)
    prepared = prepare_group_quant(weight)
    x = torch.randn(3, inputs, generator=torch.Generator().manual_seed(1))
    out, expected = torch.full((3, outputs), torch.nan), torch.empty(3, outputs)
    group_linear(out, x, prepared, None)
    reference.group_linear(expected, x, weight, None)
    torch.testing.assert_close(out, expected, rtol=0, atol=3e-6 * float(expected.abs().max()))
    ids, rows = torch.tensor([23, 0]), torch.full((2, inputs), torch.nan)
    group_embedding(rows, ids, prepared)
    torch.testing.assert_close(rows, weight.dequantised()[ids], rtol=1e-6, atol=1e-6)


def test_codes_take_no_more_room_than_they_did() -> None:
    for bits, group_size in ((4, 32), (4, 128), (4, 1 << 20), (8, 16), (8, 32)):
        weight = random_group_quant("minimum", bits, (256, 512), group_size, seed=0)
        assert prepare_group_quant(weight).nbytes == weight.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_few_rows_in_two_passes_and_many_in_one_give_the_same_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(splits.MANY_ROWS + 3, 1100, generator=generator).to(dtype)
    weight, bias = torch.randn(20, 1100, generator=generator).to(dtype), torch.randn(20, generator=generator).to(dtype)
    codes = prepare_group_quant(random_group_quant("zeros", 4, (20, 1100), 64, seed=3))
    together, alone = torch.empty(len(x), 20, dtype=dtype), torch.empty(2, 20, dtype=dtype)
    assert splits.steps_per_split(20, 64, 18, 64) < 18
    assert splits.partial_sums(together, 4) is None
    assert splits.partial_sums(alone, 4) is not None
    for product, matrix in ((linear, weight), (group_linear, codes)):
        product(together, x, matrix, bias)
        product(alone, x[-2:], matrix, bias)
        assert torch.equal(together[-2:], alone)


def test_splits_are_whole_and_leave_nothing_out() -> None:
    for outputs in (1, 64, 576, 4096, 28672, 128256):
        for steps in (1, 3, 9, 24, 64, 224):
            each = splits.steps_per_split(outputs, 128, steps, 64)
            count = -(-steps // each)
            assert each * count >= steps > each * (count - 1)
            assert count == 1 or count * -(-outputs // 128) <= splits.TARGET_PROGRAMS


def test_weights_of_another_layout_are_refused() -> None:
    weight = random_group_quant("minimum", 4, (16, 64), 32, seed=0)
    with pytest.raises(ValueError, match='the layout "rows", not "words"'):
        group_linear(torch.empty(1, 16), torch.empty(1, 64), weight, None)
    with pytest.raises(ValueError, match='the layout "rows", not "words"'):
        group_embedding(torch.empty(1, 64), torch.zeros(1, dtype=torch.int64), weight)
