"""GPTQ's layout in both versions against its definition, written out element by element."""

from __future__ import annotations

import pytest
import torch

from engine.checkpoint import CheckpointError
from engine.quant import gptq, resolve_format
from kernels.group_quant import GroupQuant
from tests.engine.tiny_packed import Codes, info_of, random_codes

Stored = dict[str, torch.Tensor]


def code_in(words: torch.Tensor, index: int, bits: int) -> int:
    """Code `index` of a run of words, low bits first."""
    per_word = 32 // bits
    return (int(words[index // per_word]) & 0xFFFFFFFF) >> (bits * (index % per_word)) & (2**bits - 1)


def read(name: str, bits: int, size: int, found: Codes, parts: Stored, *, zero_bytes: int = 1) -> GroupQuant:
    outputs, inputs = found.codes.shape
    info = info_of(name, (outputs, inputs), bits, size, found.scales.element_size(), zero_bytes)
    weight = resolve_format(name)(info, parts)
    assert isinstance(weight, GroupQuant)
    return weight


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("outputs", "inputs", "size"), [(8, 64, 64), (24, 96, 32), (16, 128, 64)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", [1, 2])
def test_the_definition(version: int, bits: int, outputs: int, inputs: int, size: int, act_order: bool) -> None:
    found = random_codes(outputs, inputs, bits, size, act_order=act_order)
    parts = gptq.pack(found.codes, found.zeros, found.scales, bits, version=version, g_idx=found.g_idx)
    assert parts["g_idx"].dtype == parts["qweight"].dtype == parts["qzeros"].dtype == torch.int32
    for output in range(outputs):
        column = parts["qweight"][:, output]
        assert [code_in(column, k, bits) for k in range(inputs)] == found.codes[output].tolist()
    for group in range(inputs // size):
        stored = [code_in(parts["qzeros"][group], output, bits) for output in range(outputs)]
        assert [value + (version == 1) for value in stored] == found.zeros[:, group].tolist()
    weight = read(f"GPTQ_V{version}", bits, size, found, parts)
    assert torch.equal(weight.dequantised(), found.numbers())
    assert (weight.perm is None) == (not act_order or size == inputs)


@pytest.mark.parametrize("bits", [4, 8])
def test_without_g_idx_and_with_a_plain_one(bits: int) -> None:
    found = random_codes(16, 64, bits, 32)
    parts = gptq.pack(found.codes, found.zeros, found.scales, bits)
    plain = read("GPTQ_V2", bits, 32, found, parts)
    del parts["g_idx"]
    bare = read("GPTQ_V2", bits, 32, found, parts)
    assert plain.perm is None
    assert bare.like(plain)
    assert torch.equal(bare.codes, plain.codes)


def test_a_sorted_order_keeps_equal_inputs_in_their_order() -> None:
    found = random_codes(8, 64, 4, 32, act_order=True)
    parts = gptq.pack(found.codes, found.zeros, found.scales, 4, g_idx=found.g_idx)
    weight = read("GPTQ_V2", 4, 32, found, parts)
    assert weight.perm is not None
    assert weight.perm.dtype == torch.int32
    first = [k for k in range(64) if found.g_idx[k] == 0]
    assert weight.perm.tolist() == first + [k for k in range(64) if found.g_idx[k] == 1]


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_zeros_take_no_memory_where_the_headers_promise_it(bits: int) -> None:
    found = random_codes(16, 64, bits, 32, symmetric=True)
    for version in (1, 2):
        parts = gptq.pack(found.codes, found.zeros, found.scales, bits, version=version)
        weight = read(f"GPTQ_V{version}", bits, 32, found, parts, zero_bytes=0)
        assert weight.zero == 2 ** (bits - 1)
        assert weight.nbytes == info_of("", (16, 64), bits, 32, 2, 0).scheme.nbytes((16, 64))
        assert torch.equal(weight.dequantised(), found.numbers())
        kept = read(f"GPTQ_V{version}", bits, 32, found, parts)
        assert isinstance(kept.zero, torch.Tensor)
        assert torch.equal(kept.dequantised(), found.numbers())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_zero_of_0_in_version_1(bits: int) -> None:
    """Makers that subtract code by code store its largest value; GPTQModel subtracts from whole words, and borrows."""
    found = random_codes(16, 64, bits, 32)
    found.zeros[3], found.zeros[4, 0], found.zeros[8:12] = 0, 2**bits - 1, 0
    parts = gptq.pack(found.codes, found.zeros, found.scales, bits)
    with pytest.raises(ValueError, match="cannot store a zero point of 0"):
        gptq.pack(found.codes, found.zeros, found.scales, bits, version=1)

    by_code = gptq.pack(found.codes, found.zeros - 1 & 2**bits - 1, found.scales, bits)
    assert torch.equal(read("GPTQ_V1", bits, 32, found, by_code).dequantised(), found.numbers())

    ones = 0x11111111 if bits == 4 else 0x01010101
    by_word = parts | {"qzeros": (parts["qzeros"].to(torch.int64) - ones).to(torch.int32)}
    assert torch.equal(read("GPTQ_V1_WORDS", bits, 32, found, by_word).dequantised(), found.numbers())
    assert not torch.equal(by_code["qzeros"], by_word["qzeros"])


@pytest.mark.parametrize(("index", "finding"), [(1, "0 to 1 with 31 to 33 inputs"), (7, "0 to 7"), (-2, "-2 to 1")])
def test_an_order_of_uneven_groups_is_refused(index: int, finding: str) -> None:
    found = random_codes(8, 64, 4, 32)
    parts = gptq.pack(found.codes, found.zeros, found.scales, 4)
    parts["g_idx"][5] = index
    with pytest.raises(CheckpointError, match=finding):
        read("GPTQ_V2", 4, 32, found, parts)


def test_what_fills_no_word_is_refused() -> None:
    found = random_codes(12, 64, 4, 32)
    with pytest.raises(ValueError, match=r"8 codes a word, and \(12, 64\)"):
        gptq.pack(found.codes, found.zeros, found.scales, 4)
