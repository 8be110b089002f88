"""Results of self-tests, as statements on a connection that the caller opened.

Owns how they are kept and found again. Knows nothing of what a self-test does.
Invariant: a result is never changed. A pair of model and drafter stands by its newest one, but for a proposer that has
failed: that counts until a later test of the same proposer passes, whatever others do and whatever proves nothing.
"""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, insert, select

from db.rows import SelfTestRow
from db.tables import selftests

CONCLUSIVE = ("passed", "failed")


def add(connection: Connection, row: SelfTestRow) -> None:
    """Keep one result."""
    connection.execute(insert(selftests).values(asdict(row)))


def find(connection: Connection, model_id: str | None, limit: int) -> list[SelfTestRow]:
    """Newest first, of one model or of all."""
    statement = select(selftests).order_by(selftests.c.finished_at.desc(), selftests.c.id).limit(limit)
    if model_id is not None:
        statement = statement.where(selftests.c.model_id == model_id)
    return [SelfTestRow(**found) for found in connection.execute(statement).mappings()]


def standing(connection: Connection, model_id: str, model_hash: str, drafter_hash: str) -> SelfTestRow | None:
    """The result that these weights with this drafter stand by; None where they were never tested.

    Of the proposers whose last conclusive result is a failure the newest such failure, else the newest result of all.
    """
    statement = (
        select(selftests)
        .where(selftests.c.model_id == model_id)
        .where(selftests.c.model_hash == model_hash, selftests.c.drafter_hash == drafter_hash)
        .order_by(selftests.c.finished_at.desc(), selftests.c.id)
    )
    rows = [SelfTestRow(**found) for found in connection.execute(statement).mappings()]
    settled = set[str]()  # proposers whose last conclusive result was seen
    for row in rows:
        if row.state in CONCLUSIVE and row.proposer not in settled:
            if row.state == "failed":
                return row
            settled.add(row.proposer)
    return rows[0] if rows else None
