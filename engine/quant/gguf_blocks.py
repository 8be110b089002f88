"""Expands GGUF blocks of 32 weights, and plain floats, to fp32.

Owns the byte layout of each block format. Knows nothing of files or names.
Invariant: exact: codes times an fp16 scale fit fp32 without rounding; only adding a minimum (Q4_1, Q5_1) rounds, once.
"""

from __future__ import annotations

import torch

_BLOCK = 32
_SCALE_BYTES = 2
_HIGH_BYTES = 4


def expand_f64(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return raw.view(torch.float64).to(torch.float32).reshape(shape)


def expand_f32(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return raw.view(torch.float32).reshape(shape)


def expand_f16(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return raw.view(torch.float16).to(torch.float32).reshape(shape)


def expand_bf16(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return raw.view(torch.bfloat16).to(torch.float32).reshape(shape)


def expand_q8_0(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: fp16 scale, 32 signed bytes. w = scale * code."""
    blocks = raw.view(-1, _SCALE_BYTES + _BLOCK)
    scale = fp16_column(blocks, 0)
    codes = blocks[:, _SCALE_BYTES:].view(torch.int8).to(torch.float32)  # [blocks, 32]
    return codes.mul_(scale).reshape(shape)


def expand_q4_0(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: fp16 scale, 16 bytes of nibbles. w = scale * (code - 8)."""
    blocks = raw.view(-1, _SCALE_BYTES + _BLOCK // 2)
    scale = fp16_column(blocks, 0)
    return _nibbles(blocks[:, _SCALE_BYTES:]).sub_(8.0).mul_(scale).reshape(shape)


def expand_q4_1(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: fp16 scale, fp16 minimum, 16 bytes of nibbles. w = scale * code + minimum."""
    blocks = raw.view(-1, 2 * _SCALE_BYTES + _BLOCK // 2)
    scale, minimum = fp16_column(blocks, 0), fp16_column(blocks, 1)
    return _nibbles(blocks[:, 2 * _SCALE_BYTES :]).mul_(scale).add_(minimum).reshape(shape)


def expand_q5_0(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: fp16 scale, 32 high bits, 16 bytes of nibbles. w = scale * (code - 16)."""
    blocks = raw.view(-1, _SCALE_BYTES + _HIGH_BYTES + _BLOCK // 2)
    scale = fp16_column(blocks, 0)
    return _five_bit_codes(blocks[:, _SCALE_BYTES:]).sub_(16.0).mul_(scale).reshape(shape)


def expand_q5_1(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: fp16 scale, fp16 minimum, 32 high bits, 16 bytes of nibbles. w = scale * code + minimum."""
    blocks = raw.view(-1, 2 * _SCALE_BYTES + _HIGH_BYTES + _BLOCK // 2)
    scale, minimum = fp16_column(blocks, 0), fp16_column(blocks, 1)
    return _five_bit_codes(blocks[:, 2 * _SCALE_BYTES :]).mul_(scale).add_(minimum).reshape(shape)


def fp16_column(blocks: torch.Tensor, index: int) -> torch.Tensor:
    """The fp16 number at position `index` of each block, as fp32 [blocks, 1]."""
    start = index * _SCALE_BYTES
    return blocks[:, start : start + _SCALE_BYTES].contiguous().view(torch.float16).to(torch.float32)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[blocks, 16] bytes -> [blocks, 32] codes in fp32: first all low nibbles, then all high ones."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=1).to(torch.float32)


def _five_bit_codes(packed: torch.Tensor) -> torch.Tensor:
    """[blocks, 4 + 16] bytes -> [blocks, 32] codes: the first four bytes hold every code's fifth bit, in order."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    high = (packed[:, :_HIGH_BYTES].unsqueeze(-1) >> shifts) & 1  # [blocks, 4, 8]
    return _nibbles(packed[:, _HIGH_BYTES:]).add_(high.flatten(1).to(torch.float32).mul_(16.0))
