"""Block formats against their definitions, spelled out in exact arithmetic, and the registry that names them."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from engine.checkpoint import TensorInfo
from engine.checkpoint.info import GROUP_SCHEMES
from engine.quant import QUANT_FORMATS, resolve_format
from tests.engine.gguf_writer import encode


def read(dtype: str, raw: bytes, shape: tuple[int, int]) -> torch.Tensor:
    """The numbers in fp32, by way of the codes where the format has some; those take the memory that was promised."""
    scheme = GROUP_SCHEMES.get(dtype)
    tensor = TensorInfo("w", dtype, shape, Path("w.gguf"), 0, len(raw), scheme=scheme)
    found = resolve_format(dtype)(tensor, {"": torch.frombuffer(bytearray(raw), dtype=torch.uint8)})
    if isinstance(found, torch.Tensor):
        assert scheme is None
        return found.to(torch.float32)
    assert scheme is not None
    assert (found.bits, found.group_size) == (scheme.bits, scheme.group_size)
    assert found.nbytes == scheme.nbytes(shape)
    return found.dequantised()


def as_fp32(value: Fraction) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", float(value)))[0]
    return rounded


def fp16(raw: bytes) -> Fraction:
    return Fraction(struct.unpack("<e", raw)[0])


def fp16_at(block: bytes, start: int) -> Fraction:
    return fp16(block[start : start + 2])


def bit(data: bytes, index: int) -> int:
    return data[index // 8] >> index % 8 & 1


def nibbles(packed: bytes) -> list[int]:
    return [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]


def by_definition(dtype: str, block: bytes) -> list[float]:
    """One block in exact arithmetic, rounded to fp32 once."""
    scale = fp16(block[:2])
    if dtype == "Q8_0":
        return [as_fp32(scale * code) for code in struct.unpack("<32b", block[2:])]
    codes = nibbles(block[-16:])
    if dtype == "Q4_0":
        return [as_fp32(scale * (code - 8)) for code in codes]
    if dtype == "Q4_1":
        return [as_fp32(scale * code + fp16_at(block, 2)) for code in codes]
    start = 2 if dtype == "Q5_0" else 4
    codes = [code + 16 * bit(block[start : start + 4], index) for index, code in enumerate(codes)]
    if dtype == "Q5_0":
        return [as_fp32(scale * (code - 16)) for code in codes]
    return [as_fp32(scale * code + fp16_at(block, 2)) for code in codes]


def six_bits(packed: bytes, index: int) -> tuple[int, int]:
    """Sub-scale and sub-minimum `index` of the 8 pairs in 12 bytes."""
    if index < 4:
        return packed[index] & 63, packed[index + 4] & 63
    low = packed[index + 4]
    return low & 15 | packed[index - 4] >> 6 << 4, low >> 4 | packed[index] >> 6 << 4


def k_by_definition(dtype: str, block: bytes) -> list[float]:
    """One block of 256 in exact arithmetic, rounded to fp32 once."""
    values = []
    if dtype == "Q6_K":
        for index in range(256):
            half, row, column = index // 128, index // 32 % 4, index % 32
            byte = block[64 * half + 32 * (row % 2) + column]
            code = (byte >> 4 if row >= 2 else byte & 15) | (block[128 + 32 * half + column] >> 2 * row & 3) << 4
            sub_scale = struct.unpack("<b", block[192 + index // 16 : 193 + index // 16])[0]
            values.append(as_fp32(fp16_at(block, 208) * sub_scale * (code - 32)))
        return values
    packed = block[-128:]
    for index in range(256):
        part, column = index // 32, index % 32
        byte = packed[part // 2 * 32 + column]
        code = byte >> 4 if part % 2 else byte & 15
        if dtype == "Q5_K":
            code += 16 * (block[16 + column] >> part & 1)
        sub_scale, sub_minimum = six_bits(block[4:16], part)
        values.append(as_fp32(fp16_at(block, 0) * sub_scale * code - fp16_at(block, 2) * sub_minimum))
    return values


def random_blocks(nbytes: int, num_halves: int, *, halves_at: int = 0) -> torch.Tensor:
    """Six blocks of random bytes with `num_halves` sane fp16 numbers from byte `halves_at` on."""
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (6, nbytes), generator=generator, dtype=torch.uint8)
    halves = torch.randn(6, num_halves, generator=generator).to(torch.float16)
    halves[0] = 0.0
    halves[1] = 2.0**-24  # the smallest subnormal
    blocks[:, halves_at : halves_at + 2 * num_halves] = halves.view(torch.uint8)
    return blocks


@pytest.mark.parametrize(
    ("dtype", "nbytes", "num_halves"),
    [("Q8_0", 34, 1), ("Q4_0", 18, 1), ("Q4_1", 20, 2), ("Q5_0", 22, 1), ("Q5_1", 24, 2)],
)
def test_blocks_are_exact(dtype: str, nbytes: int, num_halves: int) -> None:
    blocks = random_blocks(nbytes, num_halves)
    expected = [value for block in blocks for value in by_definition(dtype, bytes(block.tolist()))]
    found = read(dtype, bytes(blocks.reshape(-1).tolist()), (3, 64))
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.tensor(expected).reshape(3, 64))


@pytest.mark.parametrize(
    ("dtype", "nbytes", "num_halves", "halves_at"),
    [("Q4_K", 144, 2, 0), ("Q5_K", 176, 2, 0), ("Q6_K", 210, 1, 208)],
)
def test_k_blocks_are_exact(dtype: str, nbytes: int, num_halves: int, halves_at: int) -> None:
    blocks = random_blocks(nbytes, num_halves, halves_at=halves_at)
    expected = [value for block in blocks for value in k_by_definition(dtype, bytes(block.tolist()))]
    found = read(dtype, bytes(blocks.reshape(-1).tolist()), (3, 512))
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.tensor(expected).reshape(3, 512))


@pytest.mark.parametrize(("dtype", "error"), [("Q8_0", 0.005), ("Q4_0", 0.1), ("Q4_1", 0.07)])
def test_round_trip_stays_near(dtype: str, error: float) -> None:
    weights = torch.rand(4, 64, generator=torch.Generator().manual_seed(2)) * 2 - 1
    found = read(dtype, encode(weights, dtype), (4, 64))
    assert (found - weights).abs().max() < error


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_plain_floats(dtype: str) -> None:
    weights = torch.tensor([[1.5, -0.25], [3.0e4, 0.0]])
    found = read(dtype, encode(weights, dtype), (2, 2))
    assert found.dtype == torch.float32
    assert torch.equal(found, weights.to(torch.bfloat16).to(torch.float32) if dtype == "BF16" else weights)


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"unknown storage format 'Q9'; known are {', '.join(QUANT_FORMATS)}"):
        resolve_format("Q9")
