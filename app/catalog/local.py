"""The models on disk: the data folder's own, local ones registered in place, and the Hugging Face cache.

Owns the layout of `models/<id>/` and its record `source.json`. Downloads nothing. Invariant: whatever lies in a model
folder is listed, a broken one with its error; reading never changes anything on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.catalog.entry import MODEL_ID, CatalogError, make_id
from engine.checkpoint import CheckpointError, CheckpointInfo, read_checkpoint
from engine.checkpoint.gguf_parts import part_name, part_paths

RECORD = "source.json"
_CACHE_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model on disk. Exactly one of `info` and `error` is set; `path` is what the engine is to load."""

    id: str
    name: str
    path: Path
    format: str
    info: CheckpointInfo | None
    error: str | None
    size_bytes: int
    source: str
    removable: bool  # whether its folder (or, for a local one, its record) is ours to delete


def write_record(folder: Path, record: dict[str, Any]) -> None:
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a model folder; empty where there is none or it cannot be read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


class LocalModels:
    """Scans the folders. Headers are read once and again only when a file changed."""

    def __init__(self, models: Path, hub_cache: Path) -> None:
        self._models = models
        self._hub_cache = hub_cache
        self._read: dict[tuple[str, Path], tuple[object, LocalModel]] = {}

    def scan(self) -> list[LocalModel]:
        """Every model, ours first; a cached one whose id is taken by one of ours is the same model again."""
        found: dict[str, LocalModel] = {}
        for model in (*self._own(), *self._cached()):
            found.setdefault(model.id, model)
        return list(found.values())

    def _own(self) -> Iterator[LocalModel]:
        folders = sorted(self._models.iterdir()) if self._models.is_dir() else []
        for folder in folders:
            if folder.is_dir() and MODEL_ID.fullmatch(folder.name):
                record = read_record(folder)
                path = Path(record["path"]) if isinstance(record.get("path"), str) else folder
                source = str(record.get("source", folder))
                yield self._describe(folder.name, path, source, record.get("error"), removable=True)

    def _cached(self) -> Iterator[LocalModel]:
        folders = sorted(self._hub_cache.glob(f"{_CACHE_PREFIX}*")) if self._hub_cache.is_dir() else []
        for folder in folders:
            snapshot = _newest_snapshot(folder)
            repo = folder.name.removeprefix(_CACHE_PREFIX).replace("--", "/", 1)
            try:
                model_id = make_id(repo.replace("/", "--"))
            except CatalogError:
                continue
            if snapshot is not None and _has_weights(snapshot):
                yield self._describe(model_id, snapshot, f"hf:{repo} (Hugging Face cache)", None, removable=False)

    def _describe(self, model_id: str, path: Path, source: str, error: object, *, removable: bool) -> LocalModel:
        path = _loadable(path)
        signature = (_signature(path), source, error)
        known = self._read.get((model_id, path))
        if known is not None and known[0] == signature:
            return known[1]
        info = None
        try:
            info = read_checkpoint(path)
        except (CheckpointError, OSError) as problem:
            error = str(problem)
        model = LocalModel(
            id=model_id,
            name=_shown_name(path) if path.is_file() else model_id,
            path=path,
            format=info.format if info else ("gguf" if path.suffix == ".gguf" else "safetensors"),
            info=info if error is None else None,
            error=None if error is None else str(error),
            size_bytes=sum(size for _, size, _ in _signature(path)),
            source=source,
            removable=removable,
        )
        self._read[model_id, path] = (signature, model)
        return model


def _loadable(path: Path) -> Path:
    """A folder that is but a wrapper around one GGUF file stands for that file."""
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
    return path


def _shown_name(path: Path) -> str:
    """A file's name, or what its name would be were it not split."""
    part = part_name(path.name)
    return f"{part.stem}.gguf" if part else path.name


def _signature(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of every file: what tells whether it must be read again."""
    files = part_paths(path) if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    signature = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue  # a dangling link: read_checkpoint will say what is missing
        if file.is_file():
            signature.append((file.name, status.st_size, status.st_mtime_ns))
    return tuple(signature)


def _newest_snapshot(folder: Path) -> Path | None:
    """The snapshot the cache's `main` points at, else the one that was written last."""
    reference = folder / "refs" / "main"
    try:
        snapshot = folder / "snapshots" / reference.read_text(encoding="utf-8").strip()
        if snapshot.is_dir():
            return snapshot
    except OSError:
        pass
    snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _has_weights(snapshot: Path) -> bool:
    """Whether it holds weights in a form this engine reads; tokenizers and pickles alone are no model for us."""
    return any(snapshot.glob("*.safetensors")) or any(snapshot.glob("*.gguf"))
