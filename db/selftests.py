"""Results of self-tests, as statements on a connection that the caller opened.

Owns how they are kept and found again. Knows nothing of what a self-test does.
Invariant: a result is never changed; the newest of a pair of model and drafter is the one that counts.
"""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, insert, select

from db.rows import SelfTestRow
from db.tables import selftests


def add(connection: Connection, row: SelfTestRow) -> None:
    """Keep one result."""
    connection.execute(insert(selftests).values(asdict(row)))


def find(connection: Connection, model_id: str | None, limit: int) -> list[SelfTestRow]:
    """Newest first, of one model or of all."""
    statement = select(selftests).order_by(selftests.c.finished_at.desc(), selftests.c.id).limit(limit)
    if model_id is not None:
        statement = statement.where(selftests.c.model_id == model_id)
    return [SelfTestRow(**found) for found in connection.execute(statement).mappings()]


def newest(connection: Connection, model_id: str, model_hash: str, drafter_hash: str) -> SelfTestRow | None:
    """The last result of these weights with this drafter; None where they were never tested."""
    statement = (
        select(selftests)
        .where(selftests.c.model_id == model_id)
        .where(selftests.c.model_hash == model_hash, selftests.c.drafter_hash == drafter_hash)
        .order_by(selftests.c.finished_at.desc(), selftests.c.id)
        .limit(1)
    )
    found = connection.execute(statement).mappings().one_or_none()
    return SelfTestRow(**found) if found else None
