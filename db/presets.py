"""Presets, as statements on a connection that the caller opened.

Owns the rule that a name belongs to one of them. Knows nothing of what a preset is used for.
Invariant: nothing but the operator's own call changes or removes a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from db.errors import NameTaken, NotFound
from db.rows import PresetRow
from db.tables import presets


def find(connection: Connection) -> list[PresetRow]:
    """All, by name."""
    statement = select(presets).order_by(presets.c.name, presets.c.id)
    return [PresetRow(**found) for found in connection.execute(statement).mappings()]


def add(connection: Connection, preset_id: str, values: Mapping[str, Any], now: float) -> PresetRow:
    """A new one."""
    _require_free(connection, preset_id, values["name"])
    connection.execute(insert(presets).values(id=preset_id, created_at=now, updated_at=now, **values))
    return _existing(connection, preset_id)


def change(connection: Connection, preset_id: str, values: Mapping[str, Any], now: float) -> PresetRow:
    """What one says from now on."""
    _require_free(connection, preset_id, values["name"])
    connection.execute(update(presets).where(presets.c.id == preset_id).values(updated_at=now, **values))
    return _existing(connection, preset_id)


def remove(connection: Connection, preset_id: str) -> bool:
    """Whether there was one to remove."""
    return connection.execute(delete(presets).where(presets.c.id == preset_id)).rowcount == 1


def _require_free(connection: Connection, preset_id: str, name: str) -> None:
    holder = connection.execute(select(presets.c.id).where(presets.c.name == name)).scalar_one_or_none()
    if holder not in (None, preset_id):
        raise NameTaken(f"there is a preset {name!r} already; choose another name, or change that one")


def _existing(connection: Connection, preset_id: str) -> PresetRow:
    found = connection.execute(select(presets).where(presets.c.id == preset_id)).mappings().one_or_none()
    if found is None:
        raise NotFound(f"preset {preset_id} does not exist (or was deleted)")
    return PresetRow(**found)
