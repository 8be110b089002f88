"""AWQ's layouts (AutoAWQ's gemm, gemv and gemv_fast, and llm-awq's own) as codes, and gemm's the other way.

Owns the order of the 4-bit codes in each. Knows nothing of files or names.
Invariant: codes, scales and zeros are the checkpoint's, unrounded; gemv_fast stores scale * zero in fp16, and that
number is kept as it is.
Source: AutoAWQ 0.2.9, awq/modules/linear.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo
from engine.quant.words import code_bytes, codes_of, copied, scheme_of, words_of
from kernels.group_quant import GroupQuant, pack_nibbles

BITS = 4
WORD_COLUMNS = 8
COLUMN_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word holds column COLUMN_ORDER[i] of its eight
_NIBBLE_OF_COLUMN = tuple(COLUMN_ORDER.index(column) for column in range(WORD_COLUMNS))
_INTERLEAVED_ROWS = 4
_BLOCK_INPUTS = 64


def read_gemm(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """qweight int32 [in, out / 8], qzeros int32 [G, out / 8], scales [G, out]. w = scale * (code - zero)."""
    zeros = _columns(codes_of(parts["qzeros"], BITS, tensor.shape[0])).t()
    return _matrix(tensor, _transposed(parts["qweight"]), parts["scales"].t(), zero=zeros)


def read_gemv(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """qweight int32 [out, in / 8], qzeros int32 [out, Z], scales [out, 8 Z], G <= 8 Z. w = scale * (code - zero)."""
    groups = tensor.shape[1] // scheme_of(tensor).group_size
    codes = code_bytes(parts["qweight"], BITS, tensor.shape[1])
    zeros = codes_of(parts["qzeros"], BITS, groups)
    return _matrix(tensor, codes, parts["scales"][:, :groups], zero=zeros)


def read_gemv_fast(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """qweight int16 [out / 4, in], qzeros (llm-awq: scaled_zeros) and scales [8 Z, out]. w = scale * code + qzero.

    A block of 4 outputs and 64 inputs is stored output by output; within it each 32 inputs are stored as 8 eights, and
    input 8 a + 2 b + c of them is code 8 b + 4 c + a.
    """
    outputs, inputs = tensor.shape
    groups = inputs // scheme_of(tensor).group_size
    nibbles = codes_of(parts["qweight"], BITS, _INTERLEAVED_ROWS * inputs)
    blocks = nibbles.view(outputs // _INTERLEAVED_ROWS, inputs // _BLOCK_INPUTS, _INTERLEAVED_ROWS, _BLOCK_INPUTS)
    rows = blocks.transpose(1, 2).reshape(outputs, inputs // 32, 4, 2, 4)
    codes = rows.permute(0, 1, 4, 2, 3).reshape(outputs, inputs)
    minimum = parts["qzeros" if "qzeros" in parts else "scaled_zeros"]
    return _matrix(tensor, pack_nibbles(codes), parts["scales"][:groups].t(), minimum=minimum[:groups].t())


def pack_gemm(codes: Tensor, zeros: Tensor, scales: Tensor) -> dict[str, Tensor]:
    """The stored tensors of layout gemm.

    codes: uint8 [out, in] below 16, out a multiple of 8. zeros: uint8 [out, G] below 16. scales: [out, G], stored in
    their own dtype (AutoAWQ's is fp16).
    """
    return {
        "qweight": _packed_columns(codes.t()),
        "qzeros": _packed_columns(zeros.t()),
        "scales": scales.t().contiguous(),
    }


def _packed_columns(values: Tensor) -> Tensor:
    """uint8 [K, N] -> int32 [K, N / 8] in AWQ's order."""
    rows, columns = values.shape
    if columns % WORD_COLUMNS:
        raise ValueError(f"AWQ packs outputs by {WORD_COLUMNS}, and {columns} do not divide by that")
    ordered = values.reshape(rows, -1, WORD_COLUMNS)[:, :, list(COLUMN_ORDER)]
    return words_of(ordered.reshape(rows, columns), BITS)


def _columns(nibbles: Tensor) -> Tensor:
    """uint8 [K, N] in the words' order -> the columns in theirs."""
    return nibbles.view(nibbles.shape[0], -1, WORD_COLUMNS)[:, :, list(_NIBBLE_OF_COLUMN)].flatten(1)


def _transposed(words: Tensor) -> Tensor:
    """int32 [K, N / 8] in AWQ's order -> uint8 [N, ceil(K / 2)], two inputs a byte; nothing larger comes between."""
    if words.shape[0] % 2:
        words = torch.nn.functional.pad(words, (0, 0, 0, 1))
    columns = copied(words.t())  # a row for eight outputs
    even, odd = columns[:, 0::2], columns[:, 1::2]
    low_halves, high_halves = 0x0F0F0F0F, ~0x0F0F0F0F
    pairs = (  # byte i of the first: nibble 2 i of both inputs; of the second: nibble 2 i + 1
        even & low_halves | (odd & low_halves) << BITS,
        even >> BITS & low_halves | odd & high_halves,
    )
    codes = torch.empty(len(columns), WORD_COLUMNS, even.shape[1], dtype=torch.uint8)
    for nibble, column in enumerate(COLUMN_ORDER):
        byte, half = divmod(nibble, 2)
        codes[:, column] = pairs[half].view(torch.uint8).view(*even.shape, -1)[:, :, byte]
    return codes.flatten(0, 1)


def _matrix(
    tensor: TensorInfo, codes: Tensor, scale: Tensor, minimum: Tensor | None = None, zero: int | Tensor = 0
) -> GroupQuant:
    outputs, inputs = tensor.shape
    return GroupQuant(
        (outputs, inputs),
        BITS,
        scheme_of(tensor).group_size,
        codes,
        copied(scale),
        None if minimum is None else copied(minimum),
        zero.contiguous() if isinstance(zero, Tensor) else zero,
    )
