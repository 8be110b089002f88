"""Writes small GGUF files for tests: any key-values, any tensors, sound or deliberately not.

Owns the writing side of the byte format, kept apart from the reader on purpose. Quantises to Q8_0, Q4_0 and Q4_1.
Invariant: what `write_gguf` makes by default is a valid version 3 file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TYPE_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "F64": 28, "BF16": 30}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_BLOCK = 32


@dataclass(frozen=True)
class StoredTensor:
    """Bytes as stored, with the shape in torch order and ggml's number of the storage format."""

    shape: tuple[int, ...]
    type_id: int
    data: bytes


def store(weights: torch.Tensor, dtype: str = "F32") -> StoredTensor:
    """Encode fp32 weights as `dtype`."""
    return StoredTensor(tuple(weights.shape), TYPE_IDS[dtype], encode(weights, dtype))


def encode(weights: torch.Tensor, dtype: str) -> bytes:
    """The bytes of `weights` in the storage format `dtype`."""
    plain = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    if dtype in plain:
        return _bytes(weights.to(plain[dtype]).contiguous().view(torch.uint8))
    blocks = weights.to(torch.float32).reshape(-1, _BLOCK)
    low, high = blocks.amin(dim=1, keepdim=True), blocks.amax(dim=1, keepdim=True)
    if dtype == "Q8_0":
        scale = _half(blocks.abs().amax(dim=1, keepdim=True) / 127)
        codes = torch.round(_divide(blocks, scale)).clamp(-127, 127).to(torch.int8).view(torch.uint8)
        return _bytes(torch.cat((_half_bytes(scale), codes), dim=1))
    if dtype == "Q4_0":
        scale = _half(torch.maximum(low.abs() / 8, high.abs() / 7))
        codes = (torch.round(_divide(blocks, scale)) + 8).clamp(0, 15).to(torch.uint8)
        return _bytes(torch.cat((_half_bytes(scale), _pack(codes)), dim=1))
    if dtype == "Q4_1":
        scale, minimum = _half((high - low) / 15), _half(low)
        codes = torch.round(_divide(blocks - minimum, scale)).clamp(0, 15).to(torch.uint8)
        return _bytes(torch.cat((_half_bytes(scale), _half_bytes(minimum), _pack(codes)), dim=1))
    raise ValueError(f"cannot write {dtype}")


def _half(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float16).to(torch.float32)


def _half_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float16).contiguous().view(torch.uint8)


def _divide(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return values / torch.where(scale == 0, 1.0, scale)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    return codes[:, : _BLOCK // 2] | (codes[:, _BLOCK // 2 :] << 4)


def _bytes(raw: torch.Tensor) -> bytes:
    return bytes(raw.reshape(-1).numpy())


def interleave_rotary_rows(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Hugging Face's row order of q and k, (half, pair), to GGUF's, (pair, half)."""
    return weights.reshape(heads, 2, -1, *weights.shape[1:]).transpose(1, 2).reshape(weights.shape)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """Write a file. Values: str, bool, int (as uint32, int32 when negative), float, and lists of one of these."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += _string(key) + _value(value)
    offset, table, data = 0, b"", []
    for name, tensor in tensors.items():
        dimensions = tuple(reversed(tensor.shape))
        table += _string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        table += struct.pack("<IQ", tensor.type_id, offset)
        data.append(_padded(tensor.data, alignment))
        offset += len(data[-1])
    path.write_bytes(_padded(header + table, alignment) + b"".join(data))
    return path


def _padded(raw: bytes, alignment: int) -> bytes:
    return raw + b"\0" * (-len(raw) % alignment)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0])
        items = b"".join(_item(kind, item) for item in value)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items
    kind = _kind(value)
    return struct.pack("<I", kind) + _item(kind, value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, str):
        return _STRING
    if isinstance(value, float):
        return _F32
    return _I32 if value < 0 else _U32


def _item(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    return struct.pack({_BOOL: "<?", _F32: "<f", _U32: "<I", _I32: "<i"}[kind], value)
