"""Typed access to the key-values of a GGUF file, with errors that name file and key.

Knows no key's meaning. Invariant: no value leaves here that is not of the kind that was asked for.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from engine.checkpoint.gguf import GgufHeader
from engine.checkpoint.info import CheckpointError, UnsupportedCheckpointError


class GgufKeys:
    """The keys of a file's architecture, without their prefix."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.path = header.path
        self._prefix = f"{header.metadata.get('general.architecture')}."

    def get(self, name: str) -> Any:
        return self.header.metadata.get(self._prefix + name)

    def fail(self, name: str, expected: str) -> CheckpointError:
        found = self.get(name)
        shown = "missing" if found is None else f"{str(found)[:60]!s}"
        return CheckpointError(
            f"{self.path}: key {self._prefix}{name} is {shown}, expected {expected}; get another file of this model"
        )

    def refuse(self, name: str, what_runs: str) -> UnsupportedCheckpointError:
        return UnsupportedCheckpointError(
            f"{self.path}: key {self._prefix}{name} is {self.get(name)}: only {what_runs} run today; "
            "choose another model"
        )

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # written per layer, but all layers agree
        if value is None and default is not None:
            return default
        if type(value) is not int or value <= 0:
            raise self.fail(name, "one positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
            raise self.fail(name, "a positive number")
        return float(value)

    def floats(self, tensor_name: str, length: int) -> tuple[float, ...]:
        """The numbers of a small F32 tensor that is configuration rather than weights: all positive and finite."""
        tensor = self.header.tensors[tensor_name]
        if tensor.dtype != "F32" or tensor.shape != (length,):
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor_name} is {tensor.dtype} {tensor.shape}, expected F32 ({length},)"
            )
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.offset)
            numbers = struct.unpack(f"<{length}f", stream.read(tensor.nbytes))
        if not all(0.0 < number < math.inf for number in numbers):
            raise CheckpointError(f"{tensor.file}: tensor {tensor_name} holds numbers that cannot divide a frequency")
        return numbers
