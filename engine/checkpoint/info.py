"""What the checkpoint readers share: the result types, the errors, storage layouts, and the look of foreign files.

Owns `CheckpointInfo`, `TensorInfo` and the table of storage formats the loader can read. Knows neither GGUF nor
safetensors, and no torch.
Invariant: a `TensorInfo` that leaves a reader lies wholly inside its file; its `nbytes` follow from dtype and shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.config import ModelConfig

OUTPUT_HEAD = "lm_head.weight"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read. The message names the file, what was found, and the remedy."""


class UnsupportedCheckpointError(CheckpointError):
    """A sound checkpoint of a kind this engine does not run: architecture, quantisation or feature."""


class BlockLayout(NamedTuple):
    """How a storage format lays out elements along the last dimension: `elements` of them in `nbytes` bytes."""

    elements: int
    nbytes: int


# The formats of single tensors; engine.quant.QUANT_FORMATS holds a function for each of these names.
STORAGE_FORMATS: dict[str, BlockLayout] = {
    "F64": BlockLayout(1, 8),
    "F32": BlockLayout(1, 4),
    "F16": BlockLayout(1, 2),
    "BF16": BlockLayout(1, 2),
    "Q8_0": BlockLayout(32, 34),
    "Q4_0": BlockLayout(32, 18),
    "Q4_1": BlockLayout(32, 20),
    "Q5_0": BlockLayout(32, 22),
    "Q5_1": BlockLayout(32, 24),
    "Q4_K": BlockLayout(256, 144),
    "Q5_K": BlockLayout(256, 176),
    "Q6_K": BlockLayout(256, 210),
}


@dataclass(frozen=True, slots=True)
class GroupScheme:
    """How a matrix in codes will lie in memory, whatever its file: see `kernels.group_quant.GroupQuant`.

    bits: of a code in memory, 4 or 8. group_size: inputs that share a scale. scales: the bytes of scales, zeros and
    minima there are for so many inputs of a row. permuted: the codes have an order of inputs of their own.
    """

    bits: int
    group_size: int
    scales: BlockLayout
    permuted: bool = False

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes in memory of a matrix of this shape, or of several."""
        *rows, inputs = shape
        codes = -(-inputs * self.bits // 8)
        scales = -(-inputs // self.scales.elements) * self.scales.nbytes
        return math.prod(rows) * (codes + scales) + (_INDEX_BYTES * inputs if self.permuted else 0)


_INDEX_BYTES = 4

# What GGUF's block formats become. Five- and six-bit codes take a byte each.
GROUP_SCHEMES: dict[str, GroupScheme] = {
    "Q8_0": GroupScheme(8, 32, BlockLayout(32, 2)),
    "Q4_0": GroupScheme(4, 32, BlockLayout(32, 2)),
    "Q4_1": GroupScheme(4, 32, BlockLayout(32, 4)),
    "Q5_0": GroupScheme(8, 32, BlockLayout(32, 2)),
    "Q5_1": GroupScheme(8, 32, BlockLayout(32, 4)),
    "Q4_K": GroupScheme(4, 32, BlockLayout(256, 4 + 16)),
    "Q5_K": GroupScheme(8, 32, BlockLayout(256, 4 + 16)),
    "Q6_K": GroupScheme(8, 16, BlockLayout(256, 2 + 16)),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in torch order, (out, in) for a matrix, whatever the file's own order.

    A matrix that its file stores as several tensors (codes, scales, zeros) is one of these with `parts`: its shape is
    the matrix's, its nbytes those of all parts, file and offset those of the codes. `scheme` is set where the matrix
    is stored in codes.
    """

    name: str
    dtype: str  # a key of engine.quant.QUANT_FORMATS, where it can be loaded
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    parts: tuple[TensorInfo, ...] = ()
    scheme: GroupScheme | None = None

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def bytes_in_memory(self, dtype_bytes: int) -> int:
        """Once loaded: codes stay codes, all else takes the model's dtype."""
        return self.num_elements * dtype_bytes if self.scheme is None else self.scheme.nbytes(self.shape)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """All that a checkpoint's headers say. `tensors` is keyed by Hugging Face names, also for GGUF.

    left_out: tensors that are stored and not loaded: those that predict several tokens at once.
    """

    path: Path
    format: str  # "gguf" | "safetensors"
    config: ModelConfig
    tensors: dict[str, TensorInfo]
    quantization: str  # storage format of most of the decoder's matrix elements
    chat_template: str | None
    weights_bytes_on_disk: int
    num_parameters: int  # a tied output head is counted once
    metadata: dict[str, Any]  # GGUF key-values, or config.json
    left_out: tuple[str, ...] = ()

    def weights_bytes(self, dtype_bytes: int) -> int:
        """Bytes in memory of all weights once loaded; a tied output head is counted once."""
        tied = self.config.tie_word_embeddings
        stored = (tensor for name, tensor in self.tensors.items() if not (tied and name == OUTPUT_HEAD))
        return sum(tensor.bytes_in_memory(dtype_bytes) for tensor in stored)


_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive (a wheel, or a PyTorch .bin/.pt file)"),
    (b"\x80\x02", "a Python pickle (a PyTorch .bin/.pt file)"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89HDF", "an HDF5 file (Keras or TensorFlow)"),
    (b"version https://git-lfs", "a Git LFS pointer: the real file was not fetched (git lfs pull, or download it)"),
    (b"lmgg", "a GGML file older than GGUF"),
    (b"tjgg", "a GGML file older than GGUF"),
    (b"fmgg", "a GGML file older than GGUF"),
    (b"GGUF", "a GGUF file"),
)
SNIFF_BYTES = 64


def describe_foreign(head: bytes) -> str:
    """Say what a file that begins with `head` (its first `SNIFF_BYTES` bytes) looks like."""
    if not head:
        return "an empty file"
    for signature, description in _SIGNATURES:
        if head.startswith(signature):
            return description
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page (HTML): the download was answered with an error or a login page"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    return f"unknown data beginning with {head[:8].hex(' ')}"


def read_head(path: Path) -> bytes:
    """The first `SNIFF_BYTES` bytes of a file; `CheckpointError` where it cannot be opened."""
    try:
        with path.open("rb") as stream:
            return stream.read(SNIFF_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
