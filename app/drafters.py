"""The drafters on this machine: those shipped, those trained here, and smaller models.

Owns where they lie and what name leads to which path. Reads headers only. Invariant: a name that is not known is
refused with those that are; whether a drafter fits its target is the engine's to say when it loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.catalog import Catalog
from app.catalog.entry import MODEL_ID, CatalogError
from app.catalog.local import LocalModel
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.config import LoadOptions

FOLDER = "drafters"  # of the shipped ones among the assets, and of those trained here in the data folder
CONFIG = "config.json"
KINDS = ("eagle", "medusa")  # of drafters that are trained; as a wish for speculation each asks for its own kind
WITH_TRAINED = ("auto", "hybrid", *KINDS)  # the wishes for speculation that such a drafter serves


class DrafterError(ValueError):
    """A drafter that is not there. The message names those that are."""


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """A drafter that a load may name. source: "shipped" | "trained" | "model".

    kind: "eagle", "medusa" or "draft_model". target_model_id: the model it was trained for, "" where nobody says.
    acceptance: as its card states it.
    """

    id: str
    kind: str
    source: str
    path: str
    size_bytes: int
    target_model_id: str = ""
    fingerprint: str = ""  # of the weights that it was trained for
    acceptance: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Drafters:
    """Finds them."""

    def __init__(self, home: Path, assets: Path, catalog: Catalog) -> None:
        self._places = (("trained", home / FOLDER), ("shipped", assets / FOLDER))  # one's own come first
        self._catalog = catalog

    def trained(self) -> list[DrafterInfo]:
        """EAGLE and Medusa drafters, one's own before shipped ones of the same name."""
        found: dict[str, DrafterInfo] = {}
        for source, place in self._places:
            for folder in _folders(place):
                found.setdefault(folder.name, _described(folder, source))
        return list(found.values())

    def candidates(self, model: LocalModel) -> list[DrafterInfo]:
        """What may draft for a model: drafters trained for it or for nobody in particular, then smaller models."""
        tied = [each for each in self.trained() if each.target_model_id in ("", model.id)]
        most = model.info.num_parameters if model.info is not None else 0
        smaller = [
            DrafterInfo(other.id, "draft_model", "model", str(other.path), other.size_bytes)
            for other in self._catalog.local()
            if other.info is not None and other.id != model.id and other.info.num_parameters < most
        ]
        return tied + smaller

    def resolved(self, options: LoadOptions, model: LocalModel) -> LoadOptions:
        """The options with `drafter` as a path. Where they name none, it is the one trained here for these very
        weights, of the kind that is wished for; without one the engine looks among the shipped ones. DrafterError."""
        if options.drafter:
            return replace(options, drafter=self.path_of(options.drafter))
        if options.speculation not in WITH_TRAINED or model.info is None:
            return options
        kinds = (options.speculation,) if options.speculation in KINDS else KINDS
        own = [each for each in self.trained() if each.source == "trained" and each.fingerprint and not each.error]
        own = [each for each in own if each.kind in kinds]
        if not own:
            return options
        fingerprint = weights_fingerprint(model.info)
        return replace(options, drafter=next((each.path for each in own if each.fingerprint == fingerprint), ""))

    def path_of(self, wish: str) -> str:
        """The path that a drafter's id, a model's id or a path leads to. Raises DrafterError."""
        for each in self.trained():
            if each.id == wish:
                return each.path
        if MODEL_ID.fullmatch(wish):
            try:
                return str(self._catalog.resolve(wish).path)
            except CatalogError:
                pass  # it may still be the name of a folder
        path = Path(wish).expanduser()
        try:
            if path.exists():
                return str(path.absolute())
        except OSError:
            pass  # no name that a file could have
        known = [each.id for each in self.trained()] + [model.id for model in self._catalog.local()]
        raise DrafterError(
            f"drafter={wish[:200]!r}: there is no drafter, model or path of this name; known are {', '.join(known)}"
        )


def _folders(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (folder for folder in sorted(place.iterdir()) if (folder / CONFIG).is_file())


def _described(folder: Path, source: str) -> DrafterInfo:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return DrafterInfo(folder.name, "eagle", source, str(folder), size, error=f"{CONFIG} cannot be read: {error}")
    own = config.get("pizarra") if isinstance(config, dict) else None
    own = own if isinstance(own, dict) else {}
    target, acceptance = own.get("target"), own.get("acceptance")
    target = target if isinstance(target, dict) else {}
    return DrafterInfo(
        id=folder.name,
        kind=str(own.get("kind", "eagle")),
        source=source,
        path=str(folder),
        size_bytes=size,
        target_model_id=str(target.get("model_id", "")),
        fingerprint=str(target.get("fingerprint", "")),
        acceptance=acceptance if isinstance(acceptance, dict) else {},
        error="" if size else "it has no weights",
    )
