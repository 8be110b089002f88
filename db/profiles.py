"""Saved load options of models, and what their loads were seen to take, as statements on a caller's connection.

Owns how these rows are kept. Knows nothing of what an option means. Invariant: a model has at most one default profile.
"""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from db.rows import LoadMeasurementRow, ProfileRow
from db.tables import load_measurements, model_profiles

KEPT_MEASUREMENTS = 20  # of one model


def save_profile(connection: Connection, row: ProfileRow) -> None:
    """Insert or replace. As the default it takes that from the other ones."""
    mine = (model_profiles.c.model_id == row.model_id) & (model_profiles.c.model_hash == row.model_hash)
    if row.is_default:
        connection.execute(update(model_profiles).where(mine).values(is_default=False))
    changed = {"options": row.options, "is_default": row.is_default, "updated_at": row.updated_at}
    statement = upsert(model_profiles).values(**asdict(row))
    connection.execute(statement.on_conflict_do_update(index_elements=["model_id", "model_hash", "name"], set_=changed))


def list_profiles(connection: Connection, model_id: str) -> list[ProfileRow]:
    """Of a model, whatever its weights: by name."""
    statement = select(model_profiles).where(model_profiles.c.model_id == model_id).order_by(model_profiles.c.name)
    return [ProfileRow(**found) for found in connection.execute(statement).mappings()]


def delete_profile(connection: Connection, model_id: str, model_hash: str, name: str) -> bool:
    """Whether there was one."""
    c = model_profiles.c
    mine = (c.model_id == model_id) & (c.model_hash == model_hash) & (c.name == name)
    return connection.execute(delete(model_profiles).where(mine)).rowcount > 0


def add_measurement(connection: Connection, row: LoadMeasurementRow) -> None:
    """Keep what a load took; the oldest ones of its model go."""
    connection.execute(upsert(load_measurements).values(**asdict(row)).on_conflict_do_nothing())
    c = load_measurements.c
    newest = select(c.engine_run_id).where(c.model_id == row.model_id).order_by(c.t.desc()).limit(KEPT_MEASUREMENTS)
    connection.execute(delete(load_measurements).where(c.model_id == row.model_id, c.engine_run_id.not_in(newest)))


def raise_measurement(connection: Connection, run_id: str, measured_bytes: int) -> None:
    """It took more later, when its cache had been written to."""
    c = load_measurements.c
    higher = (c.engine_run_id == run_id) & (c.measured_bytes < measured_bytes)
    connection.execute(update(load_measurements).where(higher).values(measured_bytes=measured_bytes))


def list_measurements(connection: Connection, model_id: str, model_hash: str) -> list[LoadMeasurementRow]:
    """Of these weights, newest first."""
    c = load_measurements.c
    mine = (c.model_id == model_id) & (c.model_hash == model_hash)
    statement = select(load_measurements).where(mine).order_by(c.t.desc())
    return [LoadMeasurementRow(**found) for found in connection.execute(statement).mappings()]
