"""compressed-tensors' integer layouts against their definition, written out element by element."""

from __future__ import annotations

import pytest
import torch

from engine.quant import compressed_tensors, resolve_format
from kernels.group_quant import GroupQuant
from tests.engine.tiny_packed import Codes, info_of, random_codes

Stored = dict[str, torch.Tensor]


def read(name: str, bits: int, size: int, found: Codes, parts: Stored) -> GroupQuant:
    weight = resolve_format(name)(info_of(name, tuple(found.codes.shape), bits, size), parts)
    assert isinstance(weight, GroupQuant)
    return weight


def signed_code(words: torch.Tensor, index: int, bits: int) -> int:
    """Value `index` of a run of words: stored low bits first with 2^(bits - 1) added."""
    per_word = 32 // bits
    word = int(words[index // per_word]) & 0xFFFFFFFF
    return (word >> (bits * (index % per_word)) & (2**bits - 1)) - 2 ** (bits - 1)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("outputs", "inputs", "size"), [(8, 64, 32), (5, 44, 44), (20, 128, 64), (12, 90, 30)])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_definition(bits: int, outputs: int, inputs: int, size: int, symmetric: bool, act_order: bool) -> None:
    found = random_codes(outputs, inputs, bits, size, symmetric=symmetric, act_order=act_order)
    g_idx = found.g_idx if act_order else None
    parts = compressed_tensors.pack(found.codes, None if symmetric else found.zeros, found.scales, bits, g_idx=g_idx)
    assert parts["weight_shape"].tolist() == [outputs, inputs]
    assert parts["weight_packed"].shape == (outputs, -(-inputs * bits // 32))
    middle = 2 ** (bits - 1)
    for row in range(outputs):
        values = [signed_code(parts["weight_packed"][row], k, bits) for k in range(inputs)]
        assert values == (found.codes[row].int() - middle).tolist()
    if not symmetric:
        for group in range(inputs // size):
            values = [signed_code(parts["weight_zero_point"][:, group], row, bits) for row in range(outputs)]
            assert values == (found.zeros[:, group].int() - middle).tolist()
    weight = read("CT_PACKED", bits, size, found, parts)
    assert torch.equal(weight.dequantised(), found.numbers())
    assert (weight.perm is None) == (not act_order or size == inputs)
    assert (weight.zero == middle) if symmetric else isinstance(weight.zero, torch.Tensor)


@pytest.mark.parametrize("shape", [(12, 1), (12,), (1,), ()])
@pytest.mark.parametrize("bits", [4, 8])
def test_one_scale_a_row_or_for_all(bits: int, shape: tuple[int, ...]) -> None:
    found = random_codes(12, 64, bits, 64, symmetric=True)
    if shape in ((1,), ()):
        found.scales[:] = found.scales[0]
    parts = compressed_tensors.pack(found.codes, None, found.scales, bits)
    parts["weight_scale"] = found.scales[: max(1, *shape, 1) if shape else 1].reshape(shape)
    assert torch.equal(read("CT_PACKED", bits, 64, found, parts).dequantised(), found.numbers())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("size", "shape"), [(64, (12, 1)), (64, (12,)), (32, (12, 2))])
def test_int8(symmetric: bool, size: int, shape: tuple[int, ...]) -> None:
    found = random_codes(12, 64, 8, size, symmetric=symmetric)
    values = (found.codes.to(torch.int16) - 128).to(torch.int8)
    parts = {"weight": values, "weight_scale": found.scales.reshape(shape)}
    if not symmetric:
        parts["weight_zero_point"] = (found.zeros.to(torch.int16) - 128).to(torch.int8).reshape(shape)
    weight = read("CT_INT8", 8, size, found, parts)
    exact = found.scales.float().repeat_interleave(size, 1) * (
        values.float() - (found.zeros.float() - 128).repeat_interleave(size, 1)
    )
    assert torch.equal(weight.dequantised(), exact)
    assert (weight.zero == 128) if symmetric else isinstance(weight.zero, torch.Tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scales_keep_their_dtype_and_value(dtype: torch.dtype) -> None:
    found = random_codes(8, 64, 4, 32, dtype=dtype)
    weight = read("CT_PACKED", 4, 32, found, compressed_tensors.pack(found.codes, found.zeros, found.scales, 4))
    assert weight.scale.dtype == dtype
    assert torch.equal(weight.scale, found.scales)
