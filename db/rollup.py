"""Upkeep: samples are merged into coarser ones and removed when their time is over.

Owns the steps, how long each is kept, and the marks up to where rollups are complete. Knows nothing of readers.
Invariants: a row is removed only after all that is made from it exists; one round does a bounded amount of work; a
bucket belongs to one engine run, so no difference crosses a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, literal, select, tuple_
from sqlalchemy.dialects.sqlite import insert as upsert

from db import retention
from db.buckets import merged, raw, rolled
from db.figures import KINDS, Figures
from db.rows import MaintenanceReport
from db.tables import ROLLUPS, SAMPLES, alerts, events, jobs, rollup_marks

HOUR_S, DAY_S = retention.HOUR_S, retention.DAY_S


@dataclass(frozen=True, slots=True)
class Tier:
    """Samples of one step and how long they are kept. Step 1 is the samples themselves."""

    step_s: int
    keep_s: int


RAW = Tier(1, 24 * HOUR_S)
TIERS = (RAW, Tier(10, 7 * DAY_S), Tier(60, 90 * DAY_S), Tier(600, 90 * DAY_S))  # each made from the one before


SETTLE_S = 5  # a bucket is merged only this long after its end, when its last sample is surely written
MAX_WINDOW_S = 6 * HOUR_S  # of samples merged in one round; of coarser rows as many, which reach further
MAX_PRUNED_ROWS = 5000  # of one table in one round


def maintain(connection: Connection, now: float) -> MaintenanceReport:
    """One round. What is left over is done by the next ones."""
    rolled_up = sum(_roll_up(connection, TIERS[i], TIERS[i - 1], now) for i in range(1, len(TIERS)))
    return MaintenanceReport(rolled_up=rolled_up, pruned=_prune(connection, now))


def mark(connection: Connection, tier: Tier) -> float:
    """Up to where the tier is complete; 0 when it was never made."""
    found = connection.execute(select(rollup_marks.c.t).where(rollup_marks.c.step_s == tier.step_s))
    return found.scalar_one_or_none() or 0.0


def kept_tiers(connection: Connection) -> tuple[Tier, ...]:
    """TIERS, each kept for as long as the operator wants."""
    kept = retention.read(connection)
    return tuple(replace(tier, keep_s=kept[retention.STEPS[tier.step_s]]) for tier in TIERS)


def _rows_of(tier: Tier, figures: Figures) -> tuple[Table, list[ColumnElement[bool]]]:
    """The table that holds a tier, and the condition that selects it there."""
    if tier.step_s == RAW.step_s:
        return SAMPLES[figures.name], []
    table = ROLLUPS[figures.name]
    return table, [table.c.step_s == tier.step_s]


def _roll_up(connection: Connection, tier: Tier, source: Tier, now: float) -> int:
    """Merge the next window of `source` into `tier`."""
    complete_until = now - SETTLE_S if source is RAW else mark(connection, source)
    start = mark(connection, tier)
    oldest = _oldest(connection, source, start)
    if oldest is not None:
        complete_until = min(complete_until, oldest + MAX_WINDOW_S * source.step_s)
    end = math.floor(complete_until / tier.step_s) * tier.step_s
    if end <= start:
        return 0
    num_rows = 0
    for figures in KINDS:
        rows = raw(figures, start, end) if source is RAW else rolled(figures, source.step_s, start, end)
        buckets = merged(figures, rows.subquery(), tier.step_s).add_columns(literal(tier.step_s).label("step_s"))
        names = [column.name for column in buckets.selected_columns]
        num_rows += connection.execute(insert(ROLLUPS[figures.name]).from_select(names, buckets)).rowcount
    statement = upsert(rollup_marks).values(step_s=tier.step_s, t=end)
    connection.execute(statement.on_conflict_do_update(index_elements=["step_s"], set_={"t": end}))
    return num_rows


def _oldest(connection: Connection, source: Tier, since: float) -> float | None:
    """When the oldest row of `source` at or after `since` was taken."""
    oldest: list[float] = []
    for figures in KINDS:
        table, of_tier = _rows_of(source, figures)
        t = connection.execute(select(func.min(table.c.t)).where(table.c.t >= since, *of_tier)).scalar_one()
        if t is not None:
            oldest.append(t)
    return min(oldest, default=None)


def _prune(connection: Connection, now: float) -> int:
    """Remove rows past their time, the oldest first, of each table no more than a batch."""
    num_rows = 0
    for i, tier in enumerate(kept_tiers(connection)):
        # The tail of a tier is read from the next finer one, whose rows stay until then.
        merged_until = mark(connection, TIERS[i + 1]) if i + 1 < len(TIERS) else now
        before = min(now - tier.keep_s, merged_until)
        for figures in KINDS:
            table, of_tier = _rows_of(tier, figures)
            num_rows += _delete_batch(connection, table, [table.c.t < before, *of_tier], table.c.t)
    before = now - retention.read(connection)["retention_records_days"]
    num_rows += _delete_batch(connection, jobs, [jobs.c.finished_at < before], jobs.c.created_at)
    num_rows += _delete_batch(connection, events, [events.c.t < before], events.c.id)
    num_rows += _delete_batch(connection, alerts, [alerts.c.resolved_at < before], alerts.c.id)
    return num_rows


def _delete_batch(
    connection: Connection, table: Table, where: list[ColumnElement[bool]], order: ColumnElement[object]
) -> int:
    keys = list(table.primary_key.columns)
    doomed = select(*keys).where(*where).order_by(order).limit(MAX_PRUNED_ROWS)
    return connection.execute(delete(table).where(tuple_(*keys).in_(doomed))).rowcount
