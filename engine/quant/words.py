"""Codes of 4 and 8 bits in machine words, low bits first, and input orders: what packed formats have in common.

Owns the two directions between integers packed into 16- or 32-bit words and one code a byte, and the sorting of inputs
by their groups. Knows no format's order of rows, columns or zeros.
Invariant: exact in both directions; the words are little-endian, as safetensors stores them, so that a word's bytes in
memory hold its codes in order.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from engine.checkpoint import CheckpointError, TensorInfo
from engine.checkpoint.info import GroupScheme
from kernels.group_quant import pack_nibbles

WORD_BYTES = 4  # of the 32-bit words that all formats but one use


def code_bytes(words: Tensor, bits: int, count: int) -> Tensor:
    """Words [N, W], codes one after another along a row -> uint8 [N, ceil(count * bits / 8)], as GroupQuant has them.

    The first `count` codes of each row are kept; a last byte that is half used has a high half of 0.
    """
    raw = word_bytes(copied(words))[:, : -(-count * bits // 8)].contiguous()
    if bits == 4 and count % 2:
        raw[:, -1] &= 0x0F
    return raw


def codes_of(words: Tensor, bits: int, count: int) -> Tensor:
    """Words [N, W] -> uint8 [N, count], one code a byte."""
    raw = word_bytes(words)
    if bits == 4:
        raw = torch.stack((raw & 0x0F, raw >> 4), dim=2).flatten(1)
    return copied(raw[:, :count])


def copied(tensor: Tensor) -> Tensor:
    """The same numbers in contiguous memory of their own: what is stored lies in a file's memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


def words_of(codes: Tensor, bits: int) -> Tensor:
    """uint8 [N, K], one code a byte -> int32 [N, ceil(K * bits / 32)]; the rest of a last word is 0."""
    raw = pack_nibbles(codes) if bits == 4 else codes
    missing = -raw.shape[1] % WORD_BYTES
    padded = torch.nn.functional.pad(raw, (0, missing)) if missing else raw
    _require_little_endian()
    return padded.reshape(-1).view(torch.int32).view(len(codes), -1)


def scheme_of(tensor: TensorInfo) -> GroupScheme:
    """The scheme of a tensor in codes; ValueError where it has none."""
    if tensor.scheme is None:
        raise ValueError(f"{tensor.name} has no scheme of groups")
    return tensor.scheme


def input_order(tensor: TensorInfo, group_of_input: Tensor) -> Tensor | None:
    """int32 [in], the inputs sorted by group (equal ones in their order); None where they lie so already.

    group_of_input: whole numbers [in]. CheckpointError where the groups are not all of the scheme's size.
    """
    inputs, size = tensor.shape[1], scheme_of(tensor).group_size
    groups = group_of_input.to(torch.int64)
    expected = torch.arange(inputs) // size
    if torch.equal(groups, expected):
        return None
    ordered, order = torch.sort(groups, stable=True)
    if not torch.equal(ordered, expected):
        low, high = int(groups.min()), int(groups.max())
        counts = torch.bincount(groups.clamp(min=0), minlength=inputs // size)
        raise CheckpointError(
            f"{tensor.file}: {tensor.name}: the group index of its {inputs} inputs names groups {low} to {high} with "
            f"{int(counts.min())} to {int(counts.max())} inputs each, expected 0 to {inputs // size - 1} with {size} "
            "each; the checkpoint is damaged"
        )
    return order.to(torch.int32)


def word_bytes(words: Tensor) -> Tensor:
    """Words [N, W] -> their bytes in order, uint8 [N, W * bytes of a word]."""
    _require_little_endian()
    return words.reshape(-1).view(torch.uint8).view(len(words), -1)  # flat: a length of 1 has any stride


def _require_little_endian() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("packed weights are little-endian, and this machine is not; use unquantised weights here")
