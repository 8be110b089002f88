"""Saved load options: of each model and its weights, by name, with the last ones used and the default among them.

Owns what a profile may hold, and where each value of a load comes from. Knows neither HTTP nor how a load goes.
Invariants: a profile belongs to a model's weights, so that a model of the same id with other weights does not inherit
it; a value that no profile says is LoadOptions' own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.catalog.local import LocalModel
from app.engines import Engines
from app.errors import ApiError
from app.load_history import model_hash
from app.loaded_engine import Engine
from db.rows import ProfileRow
from db.store import Store
from engine.config import LoadOptions

LAST = "last used"
BUILT_IN = LoadOptions()
LIVE = frozenset({"idle_unload_s"})  # what a loaded engine takes without a reload
MAX_PROFILES = 50


@dataclass(frozen=True, slots=True)
class Value:
    """One load option. source: the profile's name, or "built-in"."""

    name: str
    value: Any
    built_in: Any
    source: str


@dataclass(frozen=True, slots=True)
class Difference:
    """An option that a loaded engine has otherwise than the profile that a load would take."""

    name: str
    loaded: Any
    saved: Any


@dataclass(frozen=True, slots=True)
class ModelProfiles:
    """All of a model. chosen: the profile that a load without options takes, None: the built-in values."""

    model_hash: str
    profiles: list[ProfileRow]
    chosen: str | None
    values: list[Value]
    other_weights: int  # profiles that were saved for other weights of this id, and are not used

    def options(self, name: str | None) -> dict[str, Any]:
        """Of a profile; of none: nothing."""
        return next((row.options for row in self.profiles if row.name == name), {})


class Profiles:
    """Keeps and reads them."""

    def __init__(self, store: Store, engines: Engines) -> None:
        self._store = store
        self._engines = engines

    async def of(self, model_id: str) -> ModelProfiles:
        """Raises ApiError for an unknown model."""
        model = await self._engines.local(model_id)
        return await asyncio.to_thread(self._read, model)

    async def save(self, model_id: str, name: str, options: LoadOptions, is_default: bool) -> ModelProfiles:
        """Keep the options under a name. Raises ApiError."""
        found = await self.of(model_id)
        if name == LAST:
            raise ApiError(409, f"{LAST!r} is what the last load had", param="name", remedy="Choose another name")
        if len(found.profiles) >= MAX_PROFILES and all(row.name != name for row in found.profiles):
            raise ApiError(409, f"{model_id} has {MAX_PROFILES} profiles", remedy="Delete one first")
        row = ProfileRow(model_id, found.model_hash, name, _said(options), is_default, time.time())
        await asyncio.wrap_future(self._store.save_profile(row))
        return await self.of(model_id)

    async def delete(self, model_id: str, name: str) -> ModelProfiles:
        """Raises ApiError."""
        found = await self.of(model_id)
        if not await asyncio.wrap_future(self._store.delete_profile(model_id, found.model_hash, name)):
            raise ApiError(404, f"{model_id} has no profile {name!r}", param="name")
        return await self.of(model_id)

    async def note_load(self, model_id: str, options: LoadOptions) -> None:
        """These are the last options used."""
        model = await self._engines.local(model_id)
        weights = await asyncio.to_thread(model_hash, model)
        row = ProfileRow(model_id, weights, LAST, _said(options), False, time.time())
        await asyncio.wrap_future(self._store.save_profile(row))

    def differences(self, engine: Engine, saved: ModelProfiles) -> list[Difference]:
        """What a reload with the chosen profile would change of a loaded engine."""
        if engine.wishes is None or saved.chosen is None:
            return []
        loaded, wished = dataclasses.asdict(engine.wishes), saved.options(saved.chosen)
        return [
            Difference(name, value, wanted)
            for name, value in loaded.items()
            if name not in LIVE and (wanted := wished.get(name, getattr(BUILT_IN, name))) != value
        ]

    def _read(self, model: LocalModel) -> ModelProfiles:
        weights = model_hash(model)
        rows = self._store.list_profiles(model.id)
        mine = sorted((row for row in rows if row.model_hash == weights), key=lambda row: (row.name != LAST, row.name))
        default = next((row.name for row in mine if row.is_default), None)
        chosen = default or (LAST if any(row.name == LAST for row in mine) else None)
        said: Mapping[str, Any] = next((row.options for row in mine if row.name == chosen), {})
        values = [
            Value(name, said.get(name, built_in), built_in, str(chosen) if name in said else "built-in")
            for name, built_in in dataclasses.asdict(BUILT_IN).items()
        ]
        return ModelProfiles(weights, mine, chosen, values, len(rows) - len(mine))


def _said(options: LoadOptions) -> dict[str, Any]:
    """What differs from the built-in values: a later version's better default is not held up by an old profile."""
    built_in = dataclasses.asdict(BUILT_IN)
    return {name: value for name, value in dataclasses.asdict(options).items() if value != built_in[name]}
