"""Expands GGUF blocks of 256 weights (the "K" formats) to fp32.

Owns their byte layouts: sub-blocks with small integer scales of their own under one or two fp16 numbers. Knows nothing
of files or names.
Invariant: exact: fp16 times sub-scale times code fits fp32 without rounding; only taking off a minimum rounds, once.
"""

from __future__ import annotations

import torch

from engine.quant.gguf_blocks import fp16_column

_BLOCK = 256
_SCALES = slice(4, 16)  # after two fp16 numbers: 8 sub-scales and 8 sub-minima of 6 bits each


def expand_q4_k(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: fp16 scale and minimum, 12 bytes of 6-bit sub-scales and sub-minima, nibbles; 8 sub-blocks of 32."""
    blocks = raw.view(-1, 144)
    return _scaled(blocks, _sub_block_nibbles(blocks[:, 16:])).reshape(shape)


def expand_q5_k(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: bit s of byte l belongs to weight l of sub-block s."""
    blocks = raw.view(-1, 176)
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device).unsqueeze(-1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1  # [blocks, 8, 32]
    return _scaled(blocks, _sub_block_nibbles(blocks[:, 48:]) | (high << 4)).reshape(shape)


def expand_q6_k(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Block: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed sub-scales, fp16 scale. w = d * s * (code - 32).

    Each half of 128 weights has 4 rows of 32: row r takes its nibbles from bytes 32 (r % 2) on, low ones for r < 2, and
    its high bits from pair r of 32 bytes.
    """
    blocks = raw.view(-1, 210)
    low = blocks[:, :128].reshape(-1, 2, 64)
    nibbles = torch.stack((low & 0x0F, low >> 4), dim=2).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=raw.device).unsqueeze(-1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3  # [blocks, 2, 4, 32]
    codes = (nibbles | (high << 4)).to(torch.float32).sub_(32.0).view(-1, 16, 16)
    sub_scales = blocks[:, 192:208].contiguous().view(torch.int8).to(torch.float32)
    scale = blocks[:, 208:].contiguous().view(torch.float16).to(torch.float32)
    return codes.mul_((sub_scales * scale).unsqueeze(-1)).reshape(shape)


def _sub_block_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[blocks, 128] bytes -> [blocks, 8, 32] codes: 32 bytes hold a sub-block's low and the next one's high nibbles."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return torch.cat((pairs & 0x0F, pairs >> 4), dim=2).view(-1, 8, 32)


def _scaled(blocks: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """w = scale * sub_scale * code - minimum * sub_minimum. codes uint8 [blocks, 8, 32]."""
    packed = blocks[:, _SCALES]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    sub_scales = torch.cat((first & 63, (third & 0x0F) | ((first >> 6) << 4)), dim=1)
    sub_minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    scales = fp16_column(blocks, 0) * sub_scales
    minima = fp16_column(blocks, 1) * sub_minima
    return codes.to(torch.float32).mul_(scales.unsqueeze(-1)).sub_(minima.unsqueeze(-1))
