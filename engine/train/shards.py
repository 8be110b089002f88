"""The weights of a finished checkpoint: one safetensors file, or several with an index above 5 GB.

Owns the joining of the layers' files without having them in memory. Invariant: every tensor's bytes are those of the
file it came from; within a file wider elements come first, so that each tensor is aligned.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

from engine.checkpoint.info import TensorInfo
from engine.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, read_safetensors_header

SHARD_BYTES = 5_000_000_000
_ALIGNMENT = 8
_COPIED_AT_ONCE = 1 << 24


def join_files(parts: Sequence[Path], folder: Path, shard_bytes: int = SHARD_BYTES) -> int:
    """Writes all tensors of the safetensors files `parts` into `folder`. Returns their bytes."""
    shards: list[list[TensorInfo]] = [[]]
    size = 0
    for part in parts:
        tensors = list(read_safetensors_header(part).values())
        added = sum(tensor.nbytes for tensor in tensors)
        if size + added > shard_bytes and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].extend(tensors)
        size += added
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    if len(shards) == 1:
        _write(folder / SINGLE_FILE, shards[0])
        return total
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(folder / name, shard)
        weight_map |= {tensor.name: name for tensor in shard}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return total


def _write(path: Path, tensors: list[TensorInfo]) -> None:
    ordered = sorted(tensors, key=lambda one: (-one.nbytes // max(1, one.num_elements), one.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as target:
        target.write(struct.pack("<Q", len(text)) + text)
        for tensor in ordered:
            with tensor.file.open("rb") as source:
                source.seek(tensor.offset)
                left = tensor.nbytes
                while left:
                    chunk = source.read(min(left, _COPIED_AT_ONCE))
                    if not chunk:
                        raise OSError(f"{tensor.file}: ends within tensor {tensor.name}")
                    target.write(chunk)
                    left -= len(chunk)
