"""Joins the parts of a split GGUF file (NAME-00001-of-0000N.gguf) to one header.

Owns the parts' names and how they belong together. Knows no key but `split.*`.
Invariant: what leaves here is a whole model: every part is there, in its place, and no tensor occurs twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.gguf import GgufHeader, read_gguf_header
from engine.checkpoint.info import CheckpointError, TensorInfo

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class PartName:
    """What the name of a part says. `stem` is the whole file's name without its ending; `number` counts from 1."""

    stem: str
    number: int
    count: int

    def names(self) -> tuple[str, ...]:
        """The names of all parts, in order."""
        return tuple(f"{self.stem}-{number:05}-of-{self.count:05}.gguf" for number in range(1, self.count + 1))


def part_name(name: str) -> PartName | None:
    """What `name`, with or without folders before it, says of a part; None where it is no part's."""
    match = _PART.fullmatch(name)
    return PartName(match["stem"], int(match["number"]), int(match["count"])) if match else None


def part_paths(path: Path) -> list[Path]:
    """All files that belong to a GGUF file, itself where it is not split. They need not be there."""
    part = part_name(path.name)
    return [path.with_name(name) for name in part.names()] if part else [path]


def first_part(paths: Sequence[Path]) -> Path | None:
    """The first of `paths` where all of them are parts of one file, else None."""
    matches = [_PART.fullmatch(path.name) for path in paths]
    found = {(match["stem"], match["count"]) if match else None for match in matches}
    return min(paths) if len(found) == 1 and None not in found else None


def read_gguf_parts(path: Path) -> GgufHeader:
    """The header of `path`; of all parts where it is one of several. Key-values are the first part's."""
    header = read_gguf_header(path)
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return header
    part = part_name(path.name)
    if part is None or part.count != count:
        raise CheckpointError(
            f"{path}: one of {count} parts of a split GGUF, whose name should end in -00001-of-{count:05}.gguf; "
            "give all parts their own names back"
        )
    paths = part_paths(path)
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: its other parts are missing: {', '.join(missing)}; put all {count} in one folder"
        )
    return _join([read_gguf_header(each) for each in paths])


def _join(parts: list[GgufHeader]) -> GgufHeader:
    tensors: dict[str, TensorInfo] = {}
    for index, part in enumerate(parts):
        if part.metadata.get("split.no") != index or part.metadata.get("split.count") != len(parts):
            raise CheckpointError(
                f"{part.path}: does not call itself part {index} of {len(parts)}; get the parts again"
            )
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise CheckpointError(f"{part.path}: tensor {min(twice)} is also in an earlier part; get the parts again")
        tensors |= part.tensors
    expected = parts[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(f"{parts[0].path}: {expected} tensors are announced, the parts hold {len(tensors)}")
    return GgufHeader(parts[0].path, parts[0].metadata, tensors)
