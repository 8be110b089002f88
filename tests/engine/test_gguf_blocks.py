"""Block formats against their definitions, spelled out in exact arithmetic, and the registry that names them."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest
import torch

from engine.quant import QUANT_FORMATS, resolve_format
from tests.engine.gguf_writer import encode


def as_tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def as_fp32(value: Fraction) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", float(value)))[0]
    return rounded


def fp16(raw: bytes) -> Fraction:
    return Fraction(struct.unpack("<e", raw)[0])


def by_definition(dtype: str, block: bytes) -> list[float]:
    """One block of 32 in exact arithmetic, rounded to fp32 once."""
    scale = fp16(block[:2])
    if dtype == "Q8_0":
        return [as_fp32(scale * code) for code in struct.unpack("<32b", block[2:])]
    packed = block[-16:]
    codes = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
    if dtype == "Q4_0":
        return [as_fp32(scale * (code - 8)) for code in codes]
    return [as_fp32(scale * code + fp16(block[2:4])) for code in codes]


@pytest.mark.parametrize(("dtype", "nbytes", "num_halves"), [("Q8_0", 34, 1), ("Q4_0", 18, 1), ("Q4_1", 20, 2)])
def test_blocks_are_exact(dtype: str, nbytes: int, num_halves: int) -> None:
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (6, nbytes), generator=generator, dtype=torch.uint8)
    halves = torch.randn(6, num_halves, generator=generator).to(torch.float16)
    halves[0] = 0.0
    halves[1] = 2.0**-24  # the smallest subnormal
    blocks[:, : 2 * num_halves] = halves.view(torch.uint8)
    raw = bytes(blocks.reshape(-1).tolist())
    expected = [value for row in range(6) for value in by_definition(dtype, raw[row * nbytes : (row + 1) * nbytes])]
    found = resolve_format(dtype)(as_tensor(raw), (3, 64))
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.tensor(expected).reshape(3, 64))


@pytest.mark.parametrize(("dtype", "error"), [("Q8_0", 0.005), ("Q4_0", 0.1), ("Q4_1", 0.07)])
def test_round_trip_stays_near(dtype: str, error: float) -> None:
    weights = torch.rand(4, 64, generator=torch.Generator().manual_seed(2)) * 2 - 1
    found = resolve_format(dtype)(as_tensor(encode(weights, dtype)), (4, 64))
    assert (found - weights).abs().max() < error


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_plain_floats(dtype: str) -> None:
    weights = torch.tensor([[1.5, -0.25], [3.0e4, 0.0]])
    found = resolve_format(dtype)(as_tensor(encode(weights, dtype)), (2, 2))
    assert found.dtype == torch.float32
    assert torch.equal(found, weights.to(torch.bfloat16).to(torch.float32) if dtype == "BF16" else weights)


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"unknown storage format 'Q9'; known are {', '.join(QUANT_FORMATS)}"):
        resolve_format("Q9")
