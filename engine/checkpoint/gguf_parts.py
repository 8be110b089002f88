"""Joins the parts of a split GGUF file (NAME-00001-of-0000N.gguf) to one header.

Owns the parts' names and how they belong together. Knows no key but `split.*`.
Invariant: what leaves here is a whole model: every part is there, in its place, and no tensor occurs twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine.checkpoint.gguf import GgufHeader, read_gguf_header
from engine.checkpoint.info import CheckpointError, TensorInfo

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


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
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path}: one of {count} parts of a split GGUF, whose name should end in -00001-of-{count:05}.gguf; "
            "give all parts their own names back"
        )
    names = [path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in names if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: its other parts are missing: {', '.join(missing)}; put all {count} in one folder"
        )
    return _join([read_gguf_header(part) for part in names])


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
