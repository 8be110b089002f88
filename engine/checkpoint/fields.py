"""Typed access to the fields of a JSON object, with errors that name file and field.

Knows no field's meaning. Invariant: no value leaves here that is not of the kind that was asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.checkpoint.info import CheckpointError

MAX_NUMBER = 1e30  # no field comes near it; keeps infinity, NaN and integers beyond a float's range out


class Fields:
    """A JSON object that was read from `path`."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self._values = values

    def names(self) -> list[str]:
        """The names of all fields."""
        return list(self._values)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def fail(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {name} is {self._values.get(name)!r:.80}, expected {expected}")

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or value <= 0:
            raise self.fail(name, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < MAX_NUMBER:
            raise self.fail(name, "a positive number")
        return float(value)

    def optional_number(self, name: str, default: float = 0.0) -> float:
        """A positive number; 0 where the field is null; `default` where it is not there at all."""
        if name not in self._values:
            return default
        return 0.0 if self._values[name] is None else self.number(name)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of `length` positive numbers."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.fail(name, f"a list of {length} numbers")
        if not all(type(item) in (int, float) and 0 < item < MAX_NUMBER for item in value):
            raise self.fail(name, "a list of positive numbers")
        return tuple(float(item) for item in value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def part(self, name: str) -> Fields | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return Fields(self.path, value)
