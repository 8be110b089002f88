"""Presets: a system prompt and a way to draw under one name.

Owns those that come with Pizarra, and keeps the operator's own apart from them. Knows nothing of HTTP.
Invariant: built-in presets cannot be changed, and an update of Pizarra touches no other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import ApiError
from db.errors import NameTaken
from db.rows import PresetRow
from db.store import Store


@dataclass(frozen=True, slots=True)
class Preset:
    """`name` of a built-in one is a word that the dashboard translates."""

    id: str
    name: str
    system_prompt: str
    sampling: Mapping[str, Any]
    built_in: bool = False


BUILT_IN = (
    Preset("builtin-default", "default", "", {}, built_in=True),
    Preset("builtin-exact", "exact", "", {"temperature": 0.0}, built_in=True),
    Preset("builtin-lively", "lively", "", {"temperature": 1.0, "min_p": 0.05}, built_in=True),
)


class Presets:
    """Reads and keeps them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[Preset]:
        """The built-in ones, then the operator's by name."""
        rows = await asyncio.to_thread(self._store.list_presets)
        return [*BUILT_IN, *map(_own, rows)]

    async def add(self, name: str, system_prompt: str, sampling: Mapping[str, Any]) -> Preset:
        """A new one of the operator's."""
        return await self._save(uuid.uuid4().hex, name, system_prompt, sampling, new=True)

    async def change(self, preset_id: str, name: str, system_prompt: str, sampling: Mapping[str, Any]) -> Preset:
        """All of an existing one."""
        _require_own(preset_id)
        return await self._save(preset_id, name, system_prompt, sampling, new=False)

    async def remove(self, preset_id: str) -> None:
        """Remove one of the operator's; harmless where there is none."""
        _require_own(preset_id)
        await asyncio.wrap_future(self._store.delete_preset(preset_id))

    async def _save(
        self, preset_id: str, name: str, system_prompt: str, sampling: Mapping[str, Any], *, new: bool
    ) -> Preset:
        saved = self._store.save_preset(preset_id, name.strip(), system_prompt, sampling, new=new)
        try:
            return _own(await asyncio.wrap_future(saved))
        except NameTaken as error:
            raise ApiError(409, str(error), param="name", code="name_taken") from error


def _own(row: PresetRow) -> Preset:
    return Preset(row.id, row.name, row.system_prompt, row.sampling)


def _require_own(preset_id: str) -> None:
    if any(each.id == preset_id for each in BUILT_IN):
        raise ApiError(
            409,
            f"the preset {preset_id!r} comes with Pizarra and stays as it is",
            param="id",
            remedy="Save yours under another name",
            code="built_in",
        )
