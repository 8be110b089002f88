"""Reads a Hugging Face folder: config.json and the headers of its safetensors files, single or sharded.

Owns the safetensors byte format and what config.json's fields mean for the Llama family. Reads no weights.
Invariant: no length found in a file is trusted: each is held against the file's size before it is used.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from engine.checkpoint.folder import read_json_object
from engine.checkpoint.info import CheckpointError, TensorInfo, describe_foreign, read_head

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
PICKLE_REMEDY = (
    "A pickle can run code when it is opened, so none is. Choose a version of the model in safetensors or GGUF, or "
    'convert one that you trust: `python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('FOLDER', dtype='auto').save_pretrained('NEW_FOLDER')\"`, and copy its tokenizer files"
)
_LENGTH_BYTES = 8
_FOREIGN = (*PICKLES, ".h5", ".msgpack")
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ELEMENT_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E5M2": 1, "F8_E4M3": 1,
}  # fmt: skip


def read_tensors(folder: Path, weights: Path | None = None) -> dict[str, TensorInfo]:
    """The tensors of `weights`, or of the folder's single file, or of all its shards."""
    single = weights or folder / SINGLE_FILE
    if single.is_file():
        return read_safetensors_header(single)
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder, folder / INDEX_FILE)
    raise CheckpointError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{_remedy(folder)}")


def _remedy(folder: Path) -> str:
    """What to do about a folder without the weights that are looked for, by what else is in it."""
    named = sorted(path.name for path in folder.glob("*.safetensors"))
    if named:
        return f"; if the weights are {' or '.join(named[:3])}, name that file instead of the folder"
    foreign = foreign_weights(folder)
    if not foreign:
        return "; download the model again"
    return f" (found {', '.join(foreign[:3])}: only safetensors and GGUF weights are read). {PICKLE_REMEDY}"


def foreign_weights(folder: Path) -> list[str]:
    """The names of weights in formats that are not read, which are pickles for the most part."""
    return sorted(path.name for path in folder.glob("*") if path.suffix in _FOREIGN)


def _read_shards(folder: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty; download the file again")
    shards: dict[str, dict[str, TensorInfo]] = {}
    tensors = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{index}: tensor {name} is said to be in {file!r}, expected a file of this folder")
        if file not in shards:
            if not (folder / file).is_file():
                raise CheckpointError(f"{folder / file}: this part of the model is missing; download the model again")
            shards[file] = read_safetensors_header(folder / file)
        if name not in shards[file]:
            raise CheckpointError(f"{folder / file}: tensor {name} is missing, though {index.name} names this file")
        tensors[name] = shards[file][name]
    return tensors


def read_safetensors_header(path: Path) -> dict[str, TensorInfo]:
    """Parse and check the header of one safetensors file."""
    head = read_head(path)
    size = path.stat().st_size
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if len(head) <= _LENGTH_BYTES or head[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        raise CheckpointError(f"{path}: not a safetensors file; it looks like {describe_foreign(head)}")
    if length > _MAX_HEADER_BYTES:
        raise _damaged(path, f"its length is {length} bytes, at most {_MAX_HEADER_BYTES} are allowed")
    data_start = _LENGTH_BYTES + length
    if data_start > size:
        raise CheckpointError(f"{path}: truncated: the header ends at byte {data_start}, the file has {size}")
    with path.open("rb") as stream:
        stream.seek(_LENGTH_BYTES)
        entries = _parse_header(path, stream.read(length))
    tensors = [_read_entry(path, name, entry, data_start) for name, entry in entries.items() if name != "__metadata__"]
    _check_extent(path, tensors, data_start, size)
    return {tensor.name: tensor for tensor in tensors}


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: damaged safetensors header: {what}; download the file again")


def _parse_header(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "not a JSON object")
    return header


def _read_entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise _damaged(path, f"tensor {name} has the dtype {dtype!r}; known are {', '.join(_ELEMENT_BYTES)}")
    if not _is_counts(shape):
        raise _damaged(path, f"tensor {name} has the shape {shape!r}")
    if not _is_counts(offsets) or len(offsets) != 2:
        raise _damaged(path, f"tensor {name} has the data_offsets {offsets!r}")
    nbytes = offsets[1] - offsets[0]
    if nbytes != math.prod(shape) * _ELEMENT_BYTES[dtype]:
        raise _damaged(path, f"tensor {name} is {dtype} {tuple(shape)} but occupies {nbytes} bytes")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + offsets[0], nbytes)


def _is_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_extent(path: Path, tensors: list[TensorInfo], data_start: int, size: int) -> None:
    """The format wants the tensors to cover the data without overlap or hole."""
    position, previous = data_start, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset < position:
            raise _damaged(path, f"tensor {tensor.name} overlaps {previous}")
        if tensor.offset > position:
            raise _damaged(path, f"{tensor.offset - position} unclaimed bytes between {previous} and {tensor.name}")
        position, previous = tensor.offset + tensor.nbytes, tensor.name
    if position > size:
        raise CheckpointError(
            f"{path}: truncated: tensor {previous} ends at byte {position}, the file has {size}; download it again"
        )
    if position < size:
        raise _damaged(path, f"{size - position} bytes follow the last tensor")
