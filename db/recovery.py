"""Closing what a crash left open, once, when the store opens.

Owns the rule what counts as left open. Knows nothing of why the program ended.
Invariant: afterwards nothing in the file claims to be running; text that was already stored stays.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, func, select, update

from db.figures import ENGINE
from db.tables import SAMPLES, engine_runs, jobs, messages, requests

REASON = "interrupted: the program ended while this was running"


def close_interrupted(connection: Connection, now: float) -> int:
    """Close runs, requests, jobs and messages that still claim to run. Returned: how many."""
    sampled = SAMPLES[ENGINE.name]
    last_seen = select(func.max(sampled.c.t)).where(sampled.c.engine_run_id == engine_runs.c.id).scalar_subquery()
    num_runs = connection.execute(
        update(engine_runs)
        .where(engine_runs.c.ended_at.is_(None))
        .values(state="interrupted", error=REASON, ended_at=func.coalesce(last_seen, engine_runs.c.started_at))
    ).rowcount
    unfinished = {"state": "interrupted", "error": REASON, "finished_at": now}
    return (
        num_runs
        + _close(connection, requests, requests.c.state.in_(("queued", "running")), unfinished)
        + _close(connection, jobs, jobs.c.state.in_(("queued", "running")), unfinished)
        + _close(connection, messages, messages.c.state == "streaming", {"state": "interrupted", "error": REASON})
    )


def _close(connection: Connection, table: Table, left_open: ColumnElement[bool], values: dict[str, object]) -> int:
    return connection.execute(update(table).where(left_open).values(values)).rowcount
