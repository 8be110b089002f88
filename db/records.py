"""Engine runs, samples, jobs, events and settings, as statements on a connection that the caller opened.

Owns how these rows are kept and listed. Knows nothing of threads, rollups, requests or conversations.
Invariant: saving a row that exists replaces it; its place in a list stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from db.errors import NotFound, StaleSettings
from db.figures import DEVICE, ENGINE
from db.rows import DeviceSampleRow, EngineRunRow, EngineSampleRow, EventRow, JobRow
from db.tables import SAMPLES, engine_runs, events, jobs, requests, settings


def _save(connection: Connection, table: Table, key: str, values: Mapping[str, Any]) -> None:
    """Insert, or replace all columns of the row with this key."""
    others = {name: value for name, value in values.items() if name != key}
    connection.execute(upsert(table).values(**values).on_conflict_do_update(index_elements=[key], set_=others))


# ---- engine runs and samples ----------------------------------------------------------------------------------------


def save_engine_run(connection: Connection, row: EngineRunRow) -> None:
    """Insert or replace."""
    _save(connection, engine_runs, "id", asdict(row))


def end_engine_run(connection: Connection, run_id: str, state: str, ended_at: float, error: str | None) -> None:
    """Note the end of a run."""
    ended = {"state": state, "ended_at": ended_at, "error": error}
    if connection.execute(update(engine_runs).where(engine_runs.c.id == run_id).values(ended)).rowcount == 0:
        raise NotFound(f"engine run {run_id} was never saved, so its end cannot be noted")


def get_engine_run(connection: Connection, run_id: str) -> EngineRunRow | None:
    """One run."""
    found = connection.execute(select(engine_runs).where(engine_runs.c.id == run_id)).mappings().one_or_none()
    return EngineRunRow(**found) if found else None


def list_engine_runs(
    connection: Connection, limit: int, since: float | None = None, until: float | None = None
) -> list[EngineRunRow]:
    """Newest first, those that lived at some time of [since, until)."""
    statement = select(engine_runs).order_by(engine_runs.c.started_at.desc(), engine_runs.c.id).limit(limit)
    if since is not None:
        statement = statement.where(engine_runs.c.ended_at.is_(None) | (engine_runs.c.ended_at >= since))
    if until is not None:
        statement = statement.where(engine_runs.c.started_at < until)
    return [EngineRunRow(**found) for found in connection.execute(statement).mappings()]


def last_used(connection: Connection) -> dict[str, float]:
    """By model: its newest load or request."""
    loaded = select(engine_runs.c.model_id, func.max(engine_runs.c.started_at)).group_by(engine_runs.c.model_id)
    found = {model_id: float(t) for model_id, t in connection.execute(loaded)}
    for model_id in found:
        of_model = select(requests.c.created_at).where(requests.c.model_id == model_id)
        asked = connection.execute(of_model.order_by(requests.c.seq.desc()).limit(1)).scalar_one_or_none()
        found[model_id] = max(found[model_id], asked or 0.0)
    return found


def add_samples(connection: Connection, device: DeviceSampleRow, engines: Sequence[EngineSampleRow]) -> None:
    """One second's figures."""
    connection.execute(insert(SAMPLES[DEVICE.name]), asdict(device))
    for row in engines:
        values: dict[str, Any] = {name: getattr(row, name) for name in ("engine_run_id", "t", "counted_at")}
        values |= row.figures()
        for name in ENGINE.histograms:
            histogram = getattr(row, name)
            values[name] = histogram.dumps() if histogram else None
        connection.execute(insert(SAMPLES[ENGINE.name]), values)


# ---- jobs, events, settings -----------------------------------------------------------------------------------------


def save_job(connection: Connection, row: JobRow) -> None:
    """Insert or replace."""
    _save(connection, jobs, "id", asdict(row))


def get_job(connection: Connection, job_id: str) -> JobRow | None:
    """One job."""
    found = connection.execute(select(jobs).where(jobs.c.id == job_id)).mappings().one_or_none()
    return JobRow(**found) if found else None


def list_jobs(connection: Connection, limit: int, before: str | None, kind: str | None) -> list[JobRow]:
    """A page, newest first. An unknown `before` has nothing behind it."""
    statement = select(jobs).order_by(jobs.c.created_at.desc(), jobs.c.id).limit(limit)
    if before is not None:
        at = select(jobs.c.created_at).where(jobs.c.id == before).scalar_subquery()
        statement = statement.where((jobs.c.created_at < at) | ((jobs.c.created_at == at) & (jobs.c.id > before)))
    if kind is not None:
        statement = statement.where(jobs.c.kind == kind)
    return [JobRow(**found) for found in connection.execute(statement).mappings()]


def add_event(
    connection: Connection,
    t: float,
    kind: str,
    severity: str,
    message: str,
    engine_run_id: str | None,
    data: Mapping[str, Any],
) -> EventRow:
    """Note an event."""
    row = EventRow(0, t, kind, severity, message, engine_run_id, dict(data))
    values = {name: value for name, value in asdict(row).items() if name != "id"}
    event_id = connection.execute(insert(events).values(values).returning(events.c.id)).scalar_one()
    return replace(row, id=event_id)


def list_events(
    connection: Connection, limit: int, before: int | None, since: float | None = None, until: float | None = None
) -> list[EventRow]:
    """Newest first, of [since, until)."""
    statement = select(events).order_by(events.c.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(events.c.id < before)
    if since is not None:
        statement = statement.where(events.c.t >= since)
    if until is not None:
        statement = statement.where(events.c.t < until)
    return [EventRow(**found) for found in connection.execute(statement).mappings()]


def get_settings(connection: Connection) -> dict[str, Any]:
    """All settings."""
    return {found.key: found.value for found in connection.execute(select(settings.c.key, settings.c.value))}


def set_settings(connection: Connection, values: Mapping[str, Any], expected: Mapping[str, Any], now: float) -> None:
    """Set each of these. StaleSettings where one of `expected` (None: not set) is not what stands there."""
    present = get_settings(connection)
    stale = [name for name, value in expected.items() if present.get(name) != value]
    if stale:
        raise StaleSettings(sorted(stale))
    for key, value in values.items():
        _save(connection, settings, "key", {"key": key, "value": value, "updated_at": now})
