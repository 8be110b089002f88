"""A short name for the weights of a checkpoint, which ties what was trained on them to them.

Reads a few kilobytes of every tensor and no more, so that it costs milliseconds. Knows neither formats nor models.
Invariant: it depends on the tensors alone (names, formats, shapes, bytes), not on where their files lie or on how they
are divided into files; weights that were trained on, or quantised, have another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.checkpoint.info import CheckpointError, CheckpointInfo, TensorInfo

WINDOW_BYTES = 1024  # of a tensor's start, middle and end


def weights_fingerprint(info: CheckpointInfo) -> str:
    """64 hexadecimal digits: sha256 over each tensor's name, format, shape and three windows of its bytes.

    CheckpointError for a file that cannot be read, or is shorter than its header says.
    """
    digest = hashlib.sha256()
    files: dict[Path, BinaryIO] = {}
    try:
        for _, tensor in sorted(info.tensors.items()):
            for part in _stored(tensor):
                digest.update(f"{part.name}\0{part.dtype}\0{part.shape}\0".encode())
                for window in _windows(files, part):
                    digest.update(window)
    finally:
        for stream in files.values():
            stream.close()
    return digest.hexdigest()


def _stored(tensor: TensorInfo) -> tuple[TensorInfo, ...]:
    """The tensors of the file that make up this one."""
    return tensor.parts or (tensor,)


def _windows(files: dict[Path, BinaryIO], tensor: TensorInfo) -> Iterator[bytes]:
    size = min(WINDOW_BYTES, tensor.nbytes)
    for start in (0, (tensor.nbytes - size) // 2, tensor.nbytes - size):
        try:
            if tensor.file not in files:
                files[tensor.file] = tensor.file.open("rb")
            stream = files[tensor.file]
            stream.seek(tensor.offset + start)
            found = stream.read(size)
        except OSError as error:
            raise CheckpointError(f"{tensor.file}: cannot be read ({error.strerror or error})") from error
        if len(found) != size:
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} ends early; download the file again")
        yield found
