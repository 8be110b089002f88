"""AWQ's layouts against their definition, written out element by element."""

from __future__ import annotations

import pytest
import torch

from engine.quant import awq, resolve_format
from kernels.group_quant import GroupQuant
from tests.engine.tiny_packed import Codes, info_of, random_codes

Stored = dict[str, torch.Tensor]
GEMM_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def unsigned(word: torch.Tensor) -> int:
    return int(word) & 0xFFFFFFFF


def gemm_code(words: torch.Tensor, row: int, column: int) -> int:
    """The code of `column` in row `row`: nibble i of word c is column 8 c + GEMM_ORDER[i]."""
    nibble = GEMM_ORDER.index(column % 8)
    return unsigned(words[row, column // 8]) >> (4 * nibble) & 15


def read(name: str, size: int, found: Codes, parts: Stored) -> GroupQuant:
    outputs, inputs = found.codes.shape
    weight = resolve_format(name)(info_of(name, (outputs, inputs), 4, size), parts)
    assert isinstance(weight, GroupQuant)
    assert (weight.shape, weight.bits, weight.group_size) == ((outputs, inputs), 4, size)
    return weight


@pytest.mark.parametrize(("outputs", "inputs", "size"), [(8, 7, 7), (24, 64, 32), (16, 128, 64), (40, 128, 128)])
def test_gemm_is_what_its_definition_says(outputs: int, inputs: int, size: int) -> None:
    found = random_codes(outputs, inputs, 4, size)
    parts = awq.pack_gemm(found.codes, found.zeros, found.scales)
    assert {kind: tuple(part.shape) for kind, part in parts.items()} == {
        "qweight": (inputs, outputs // 8),
        "qzeros": (inputs // size, outputs // 8),
        "scales": (inputs // size, outputs),
    }
    for row in range(inputs):
        assert [gemm_code(parts["qweight"], row, o) for o in range(outputs)] == found.codes[:, row].tolist()
    for group in range(inputs // size):
        assert [gemm_code(parts["qzeros"], group, o) for o in range(outputs)] == found.zeros[:, group].tolist()
    weight = read("AWQ_GEMM", size, found, parts)
    assert torch.equal(weight.expanded_codes(), found.codes)
    assert torch.equal(weight.dequantised(), found.numbers())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scales_keep_their_dtype_and_value(dtype: torch.dtype) -> None:
    found = random_codes(16, 64, 4, 32, dtype=dtype)
    weight = read("AWQ_GEMM", 32, found, awq.pack_gemm(found.codes, found.zeros, found.scales))
    assert weight.scale.dtype == dtype
    assert torch.equal(weight.scale, found.scales)


@pytest.mark.parametrize(("inputs", "size", "words"), [(64, 32, 4), (128, 64, 2), (256, 128, 1), (128, 128, 1)])
def test_gemv(inputs: int, size: int, words: int) -> None:
    found = random_codes(8, inputs, 4, size)
    groups = inputs // size
    qweight = torch.zeros(8, inputs // 8, dtype=torch.int64)
    qzeros = torch.zeros(8, words, dtype=torch.int64)
    for row in range(8):
        for column in range(inputs):
            qweight[row, column // 8] |= int(found.codes[row, column]) << (4 * (column % 8))
        for group in range(groups):
            qzeros[row, group // 8] |= int(found.zeros[row, group]) << (4 * (group % 8))
    scales = torch.full((8, 8 * words), 7.0, dtype=torch.float16)
    scales[:, :groups] = found.scales
    parts = {"qweight": qweight.to(torch.int32), "qzeros": qzeros.to(torch.int32), "scales": scales}
    weight = read("AWQ_GEMV", size, found, parts)
    assert torch.equal(weight.expanded_codes(), found.codes)
    assert torch.equal(weight.dequantised(), found.numbers())


def gemv_fast_place(output: int, column: int) -> tuple[int, int, int]:
    """Row, word and nibble of a code: 4 outputs by 64 inputs are one run of nibbles, output by output."""
    eight, pair, half = column % 32 // 8, column % 8 // 2, column % 2
    within = column % 64 // 32 * 32 + 8 * pair + 4 * half + eight
    nibble = output % 4 * 64 + within
    return output // 4, column // 64 * 64 + nibble // 4, nibble % 4


@pytest.mark.parametrize("zeros_name", ["qzeros", "scaled_zeros"])
def test_gemv_fast_keeps_its_rounded_zeros(zeros_name: str) -> None:
    found = random_codes(8, 192, 4, 64)
    qweight = torch.zeros(2, 192, dtype=torch.int64)
    for output in range(8):
        for column in range(192):
            row, word, nibble = gemv_fast_place(output, column)
            qweight[row, word] |= int(found.codes[output, column]) << (4 * nibble)
    scales = torch.zeros(16, 8, dtype=torch.float16)
    scales[:3] = found.scales.t()
    minimum = torch.zeros_like(scales)
    minimum[:3] = -(found.scales.float() * found.zeros.float()).half().t()
    parts = {"qweight": qweight.to(torch.int16), "scales": scales, zeros_name: minimum}
    weight = read("AWQ_GEMV_FAST", 64, found, parts)
    assert torch.equal(weight.expanded_codes(), found.codes)
    spread = torch.arange(192) // 64
    exact = found.scales.float()[:, spread] * found.codes + minimum[:3].t().float()[:, spread]
    assert torch.equal(weight.dequantised(), exact)


def test_outputs_that_fill_no_word_are_refused() -> None:
    found = random_codes(12, 64, 4, 32)
    with pytest.raises(ValueError, match="by 8, and 12 do not divide"):
        awq.pack_gemm(found.codes, found.zeros, found.scales)
