"""Reads the header of a GGUF file (versions 2 and 3): key-values and the table of tensors.

Owns the byte format. Knows neither what the keys mean (gguf_model.py) nor how blocks become numbers
(engine.quant).
Invariant: no length found in the file is trusted: each is held against the bytes that are left before it is used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from engine.checkpoint.info import (
    BlockLayout,
    CheckpointError,
    TensorInfo,
    UnsupportedCheckpointError,
    describe_foreign,
    read_head,
)

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SMALLEST_PAIR = 8 + 4 + 1  # bytes of a key-value with an empty key and a one-byte value
_SMALLEST_TENSOR = 8 + 4 + 4 + 8  # bytes of a tensor entry with an empty name and no dimensions

# ggml's numbers for its storage formats. The layouts of formats the loader lacks serve only to check the file's extent,
# so that such a file is refused for its format and not for a false damage.
GGML_TYPES: dict[int, tuple[str, BlockLayout]] = {
    0: ("F32", BlockLayout(1, 4)),
    1: ("F16", BlockLayout(1, 2)),
    2: ("Q4_0", BlockLayout(32, 18)),
    3: ("Q4_1", BlockLayout(32, 20)),
    6: ("Q5_0", BlockLayout(32, 22)),
    7: ("Q5_1", BlockLayout(32, 24)),
    8: ("Q8_0", BlockLayout(32, 34)),
    9: ("Q8_1", BlockLayout(32, 36)),
    10: ("Q2_K", BlockLayout(256, 84)),
    11: ("Q3_K", BlockLayout(256, 110)),
    12: ("Q4_K", BlockLayout(256, 144)),
    13: ("Q5_K", BlockLayout(256, 176)),
    14: ("Q6_K", BlockLayout(256, 210)),
    15: ("Q8_K", BlockLayout(256, 292)),
    16: ("IQ2_XXS", BlockLayout(256, 66)),
    17: ("IQ2_XS", BlockLayout(256, 74)),
    18: ("IQ3_XXS", BlockLayout(256, 98)),
    19: ("IQ1_S", BlockLayout(256, 50)),
    20: ("IQ4_NL", BlockLayout(32, 18)),
    21: ("IQ3_S", BlockLayout(256, 110)),
    22: ("IQ2_S", BlockLayout(256, 82)),
    23: ("IQ4_XS", BlockLayout(256, 136)),
    24: ("I8", BlockLayout(1, 1)),
    25: ("I16", BlockLayout(1, 2)),
    26: ("I32", BlockLayout(1, 4)),
    27: ("I64", BlockLayout(1, 8)),
    28: ("F64", BlockLayout(1, 8)),
    29: ("IQ1_M", BlockLayout(256, 56)),
    30: ("BF16", BlockLayout(1, 2)),
    34: ("TQ1_0", BlockLayout(256, 54)),
    35: ("TQ2_0", BlockLayout(256, 66)),
    39: ("MXFP4", BlockLayout(32, 17)),
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A GGUF file's header. Tensor names are the file's own; shapes are in torch order already."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """A row of the tensor table before the start of the data is known; `offset` counts from there."""

    name: str
    dtype: str
    layout: BlockLayout
    shape: tuple[int, ...]
    offset: int

    def nbytes(self) -> int:
        *rows, row = self.shape or (1,)
        return math.prod(rows) * (row // self.layout.elements) * self.layout.nbytes


class _Reader:
    """Reads little-endian values, never past the end of the file."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream = stream
        self.path = path
        self.size = path.stat().st_size
        self.position = 0

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: damaged GGUF header: {what}; download the file again")

    def take(self, length: int, what: str) -> bytes:
        if length > self.remaining:
            raise self.fail(
                f"{what} at byte {self.position} needs {length} bytes, the file has {self.remaining} left (truncated?)"
            )
        self.position += length
        return self._stream.read(length)

    def integer(self, code: str, what: str) -> int:
        value: int = struct.unpack(f"<{code}", self.take(struct.calcsize(code), what))[0]
        return value

    def count(self, smallest: int, what: str) -> int:
        """A number of items of at least `smallest` bytes each."""
        found = self.integer("Q", what)
        if found * smallest > self.remaining:
            raise self.fail(f"{what} is {found}, more than the {self.remaining} bytes left can hold")
        return found

    def string(self, what: str) -> str:
        raw = self.take(self.count(1, f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8 ({error.reason})") from error

    def value(self, type_id: int, key: str) -> Any:
        if type_id == _STRING:
            return self.string(f"the value of {key}")
        if type_id == _ARRAY:
            return self._array(key)
        return self._scalars(type_id, 1, key)[0]

    def _array(self, key: str) -> list[Any]:
        type_id = self.integer("I", f"the element type of {key}")
        if type_id == _STRING:
            what = f"an element of {key}"
            return [self.string(what) for _ in range(self.count(8, f"the length of {key}"))]
        if type_id == _ARRAY:
            raise self.fail(f"{key} is an array of arrays, which no known model uses")
        return list(self._scalars(type_id, self.count(1, f"the length of {key}"), key))

    def _scalars(self, type_id: int, number: int, key: str) -> tuple[Any, ...]:
        code = _SCALARS.get(type_id)
        if code is None:
            raise self.fail(f"{key} has the unknown value type {type_id}")
        return struct.unpack(f"<{number}{code}", self.take(number * struct.calcsize(code), f"the value of {key}"))


def read_gguf_header(path: Path) -> GgufHeader:
    """Parse and check the header of `path`; the tensors' data is not read."""
    head = read_head(path)
    if not head.startswith(MAGIC):
        raise CheckpointError(f"{path}: not a GGUF file; it looks like {describe_foreign(head)}")
    with path.open("rb") as stream:
        reader = _Reader(stream, path)
        reader.take(len(MAGIC), "the magic")
        _check_version(reader)
        num_tensors = reader.count(_SMALLEST_TENSOR, "the number of tensors")
        metadata = _read_metadata(reader)
        entries = [_read_entry(reader) for _ in range(num_tensors)]
        data_start = _align(reader.position, _alignment(reader, metadata))
    return GgufHeader(path, metadata, _place(reader, entries, data_start))


def _check_version(reader: _Reader) -> None:
    version = reader.integer("I", "the version")
    if version in _VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise UnsupportedCheckpointError(f"{reader.path}: a big-endian GGUF file; get the little-endian one")
    raise UnsupportedCheckpointError(
        f"{reader.path}: GGUF version {version}; versions 2 and 3 are read: convert the model again with a current tool"
    )


def _read_metadata(reader: _Reader) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(reader.count(_SMALLEST_PAIR, "the number of key-values")):
        key = reader.string("a key")
        if key in metadata:
            raise reader.fail(f"the key {key} occurs twice")
        metadata[key] = reader.value(reader.integer("I", f"the type of {key}"), key)
    return metadata


def _read_entry(reader: _Reader) -> _TensorEntry:
    name = reader.string("a tensor's name")
    num_dimensions = reader.integer("I", f"the dimensions of {name}")
    if num_dimensions > _MAX_DIMENSIONS:
        raise reader.fail(f"tensor {name} has {num_dimensions} dimensions, at most {_MAX_DIMENSIONS} are possible")
    dimensions = [reader.integer("Q", f"the shape of {name}") for _ in range(num_dimensions)]
    shape = tuple(reversed(dimensions))  # ggml counts the innermost dimension first
    dtype, layout = _storage_format(reader, name)
    if shape and shape[-1] % layout.elements:
        raise reader.fail(f"tensor {name} has rows of {shape[-1]} elements, {dtype} packs blocks of {layout.elements}")
    return _TensorEntry(name, dtype, layout, shape, reader.integer("Q", f"the offset of {name}"))


def _storage_format(reader: _Reader, name: str) -> tuple[str, BlockLayout]:
    type_id = reader.integer("I", f"the type of {name}")
    if type_id not in GGML_TYPES:
        raise UnsupportedCheckpointError(
            f"{reader.path}: tensor {name} has the unknown ggml type {type_id}; choose a Q4_K_M, Q8_0 or F16 file"
        )
    return GGML_TYPES[type_id]


def _alignment(reader: _Reader, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise reader.fail(f"general.alignment is {alignment!r}, expected a positive multiple of 8")
    return alignment


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _place(reader: _Reader, entries: list[_TensorEntry], data_start: int) -> dict[str, TensorInfo]:
    """Turn offsets into file positions; refuse tensors that overlap or lie beyond the end."""
    tensors: dict[str, TensorInfo] = {}
    free_from = data_start
    previous = "the header"
    for entry in sorted(entries, key=lambda entry: entry.offset):
        start, nbytes = data_start + entry.offset, entry.nbytes()
        if entry.name in tensors:
            raise reader.fail(f"tensor {entry.name} occurs twice")
        if start < free_from:
            raise reader.fail(f"tensor {entry.name} overlaps {previous}")
        if start + nbytes > reader.size:
            raise CheckpointError(
                f"{reader.path}: truncated: tensor {entry.name} ends at byte {start + nbytes}, the file has "
                f"{reader.size}; download it again"
            )
        tensors[entry.name] = TensorInfo(entry.name, entry.dtype, entry.shape, reader.path, start, nbytes)
        free_from, previous = start + nbytes, entry.name
    return tensors
