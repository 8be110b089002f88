"""Reads GGUF's blocks of 32 weights as codes.

Owns the byte layout of each block format. Knows nothing of files or names.
Invariant: codes and scales are the file's, each in at most as many bits more as whole bytes need; signed codes are
stored with an offset, which is their zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo
from kernels.group_quant import GroupQuant, pack_nibbles

BLOCK = 32
_HALF_BYTES = 2  # of an fp16 number
_HIGH_BYTES = 4


def read_q8_0(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: fp16 scale, 32 signed bytes. w = scale * code."""
    blocks = parts[""].view(-1, _HALF_BYTES + BLOCK)
    codes = blocks[:, _HALF_BYTES:] ^ 0x80  # the same as adding 128 to a signed byte
    return _matrix(tensor, 8, codes, halves(blocks, 0), zero=128)


def read_q4_0(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: fp16 scale, 16 bytes of nibbles. w = scale * (code - 8)."""
    blocks = parts[""].view(-1, _HALF_BYTES + BLOCK // 2)
    return _matrix(tensor, 4, nibbles(blocks[:, _HALF_BYTES:]), halves(blocks, 0), zero=8)


def read_q4_1(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: fp16 scale, fp16 minimum, 16 bytes of nibbles. w = scale * code + minimum."""
    blocks = parts[""].view(-1, 2 * _HALF_BYTES + BLOCK // 2)
    return _matrix(tensor, 4, nibbles(blocks[:, 2 * _HALF_BYTES :]), halves(blocks, 0), minimum=halves(blocks, 1))


def read_q5_0(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: fp16 scale, 32 high bits, 16 bytes of nibbles. w = scale * (code - 16)."""
    blocks = parts[""].view(-1, _HALF_BYTES + _HIGH_BYTES + BLOCK // 2)
    return _matrix(tensor, 8, _five_bit_codes(blocks[:, _HALF_BYTES:]), halves(blocks, 0), zero=16)


def read_q5_1(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """Block: fp16 scale, fp16 minimum, 32 high bits, 16 bytes of nibbles. w = scale * code + minimum."""
    blocks = parts[""].view(-1, 2 * _HALF_BYTES + _HIGH_BYTES + BLOCK // 2)
    codes = _five_bit_codes(blocks[:, 2 * _HALF_BYTES :])
    return _matrix(tensor, 8, codes, halves(blocks, 0), minimum=halves(blocks, 1))


def halves(blocks: Tensor, index: int) -> Tensor:
    """The fp16 number at position `index` of each block, as fp16 [blocks, 1]."""
    start = index * _HALF_BYTES
    return blocks[:, start : start + _HALF_BYTES].contiguous().view(torch.float16)


def rows_and_inputs(tensor: TensorInfo) -> tuple[int, int]:
    """The tensor as a matrix: its last dimension are the inputs."""
    inputs = tensor.shape[-1]
    return tensor.num_elements // inputs, inputs


def nibbles(packed: Tensor) -> Tensor:
    """[blocks, 16] bytes -> uint8 [blocks, 32] codes: first all low nibbles, then all high ones."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=1)


def _five_bit_codes(packed: Tensor) -> Tensor:
    """[blocks, 4 + 16] bytes -> uint8 [blocks, 32] codes: four bytes hold every code's fifth bit, in order."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    high = (packed[:, :_HIGH_BYTES].unsqueeze(-1) >> shifts) & 1  # [blocks, 4, 8]
    return nibbles(packed[:, _HIGH_BYTES:]).bitwise_or_(high.flatten(1) << 4)


def _matrix(
    tensor: TensorInfo, bits: int, codes: Tensor, scale: Tensor, minimum: Tensor | None = None, zero: int = 0
) -> GroupQuant:
    """codes uint8 [blocks, 32]; scale and minimum fp16 [blocks, 1]."""
    rows, inputs = shape = rows_and_inputs(tensor)
    codes = codes.reshape(rows, inputs)
    return GroupQuant(
        shape=shape,
        bits=bits,
        group_size=BLOCK,
        codes=pack_nibbles(codes) if bits == 4 else codes,
        scale=scale.view(rows, -1),
        minimum=None if minimum is None else minimum.view(rows, -1),
        zero=zero,
    )
