"""Reads GGUF's blocks of 256 weights (the "K" formats) as codes.

Owns their byte layouts: sub-blocks with small integer scales of their own under one or two fp16 numbers. Knows nothing
of files or names.
Invariant: codes and scales are the file's; six-bit scales and five- and six-bit codes take a byte each.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo
from engine.quant.gguf_blocks import halves, rows_and_inputs
from kernels.group_quant import GroupQuant, pack_nibbles

_BLOCK = 256
_SCALES = slice(4, 16)  # after two fp16 numbers: 8 sub-scales and 8 sub-minima of 6 bits each


def read_q4_k(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: fp16 scale and minimum, 12 bytes of 6-bit sub-scales and sub-minima, nibbles; 8 sub-blocks of 32."""
    blocks = parts[""].view(-1, 144)
    return _with_minima(tensor, 4, blocks, _sub_block_nibbles(blocks[:, 16:]))


def read_q5_k(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: bit s of byte l belongs to weight l of sub-block s."""
    blocks = parts[""].view(-1, 176)
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device).unsqueeze(-1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1  # [blocks, 8, 32]
    return _with_minima(tensor, 8, blocks, _sub_block_nibbles(blocks[:, 48:]).bitwise_or_(high << 4))


def read_q6_k(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed sub-scales, fp16 scale. w = d * s * (code - 32).

    Each half of 128 weights has 4 rows of 32: row r takes its nibbles from bytes 32 (r % 2) on, low ones for r < 2, and
    its high bits from pair r of 32 bytes.
    """
    blocks = parts[""].view(-1, 210)
    rows, inputs = shape = rows_and_inputs(tensor)
    low = blocks[:, :128].reshape(-1, 2, 64)
    codes = torch.stack((low & 0x0F, low >> 4), dim=2).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device).unsqueeze(-1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3  # [blocks, 2, 4, 32]
    return GroupQuant(
        shape=shape,
        bits=8,
        group_size=16,
        codes=codes.bitwise_or_(high << 4).view(rows, inputs),
        scale=halves(blocks, 104).view(rows, -1),
        zero=32,
        sub_scale=blocks[:, 192:208].reshape(rows, -1).view(torch.int8),
        sub_groups=_BLOCK // 16,
    )


def _sub_block_nibbles(packed: Tensor) -> Tensor:
    """[blocks, 128] bytes -> [blocks, 8, 32] codes: 32 bytes hold a sub-block's low and the next one's high nibbles."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return torch.cat((pairs & 0x0F, pairs >> 4), dim=2).view(-1, 8, 32)


def _with_minima(tensor: TensorInfo, bits: int, blocks: Tensor, codes: Tensor) -> GroupQuant:
    """w = scale * sub_scale * code - minimum * sub_minimum. codes uint8 [blocks, 8, 32]."""
    rows, inputs = shape = rows_and_inputs(tensor)
    packed = blocks[:, _SCALES]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    sub_scale = torch.cat((first & 63, (third & 0x0F) | ((first >> 6) << 4)), dim=1)
    sub_minimum = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    codes = codes.view(rows, inputs)
    return GroupQuant(
        shape=shape,
        bits=bits,
        group_size=32,
        codes=pack_nibbles(codes) if bits == 4 else codes,
        scale=halves(blocks, 0).view(rows, -1),
        minimum=-halves(blocks, 1).view(rows, -1),
        sub_scale=sub_scale.view(rows, -1).view(torch.int8),
        sub_minimum=sub_minimum.view(rows, -1),
        sub_groups=_BLOCK // 32,
    )
