"""Requests, their courses and their texts, as statements on a connection that the caller opened.

Owns how the list is filtered and paged, and what is removed when. Knows nothing of threads or of what a course means.
Invariants: a page costs a bounded number of rows, however many there are: the newest `SEARCHED` that an index leads to
are looked at, and `next_before` says where to go on; nothing is sorted but the few of one id's beginning; a text
never outlives its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    delete,
    func,
    insert,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from db.request_rows import SHORT_PREFIX, RequestBodyRow, RequestFilter
from db.rows import RequestPage, RequestRow
from db.tables import request_bodies, request_details, requests

SEARCHED = 50_000  # rows of the list that one page may look at where no single index holds just those wanted
OPEN_STATES = ("queued", "running")
MAX_BODIES = 10_000  # the newest
SPREAD_S = 3600.0  # no request waits longer between its reception and its place in the list


def save(connection: Connection, row: RequestRow) -> None:
    """Insert or replace; a request keeps its place in the list."""
    seed = None if row.seed is None else str(row.seed)
    values = {**asdict(row), "seed": seed}
    others = {name: value for name, value in values.items() if name != "id"}
    connection.execute(
        upsert(requests).values(**values).on_conflict_do_update(index_elements=["id"], set_=others)
    )  # fmt: skip


def save_ended(
    connection: Connection, row: RequestRow, timeline: Mapping[str, Any], body: RequestBodyRow | None
) -> None:
    """The row, its course, and its texts where they are to be kept."""
    save(connection, row)
    values = {"request_id": row.id, "timeline": dict(timeline)}
    statement = upsert(request_details).values(**values)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["request_id"], set_={"timeline": values["timeline"]})
    )
    if body is not None:
        connection.execute(insert(request_bodies).values(**asdict(body)))
        newest = connection.execute(select(func.max(request_bodies.c.seq))).scalar_one()
        connection.execute(delete(request_bodies).where(request_bodies.c.seq <= newest - MAX_BODIES))


def get(connection: Connection, request_id: str) -> RequestRow | None:
    """One request."""
    found = connection.execute(select(requests).where(requests.c.id == request_id)).mappings().one_or_none()
    return _row(found) if found else None


def timeline(connection: Connection, request_id: str) -> dict[str, Any] | None:
    """The course of one that has ended."""
    statement = select(request_details.c.timeline).where(request_details.c.request_id == request_id)
    found: dict[str, Any] | None = connection.execute(statement).scalar_one_or_none()
    return found


def body(connection: Connection, request_id: str) -> RequestBodyRow | None:
    """The texts of one, where they were kept."""
    statement = select(request_bodies).where(request_bodies.c.request_id == request_id)
    found = connection.execute(statement).mappings().one_or_none()
    if found is None:
        return None
    values = {name: value for name, value in found.items() if name != "seq"}
    return RequestBodyRow(**{**values, "truncated": bool(found["truncated"])})


def _row(found: RowMapping) -> RequestRow:
    values = {name: value for name, value in found.items() if name != "seq"}
    seed, slow = values.pop("seed"), values.pop("slow")
    return RequestRow(
        **values, seed=None if seed is None else int(seed), slow=None if slow is None else bool(slow)
    )  # fmt: skip


# ---- the list -------------------------------------------------------------------------------------------------------


def find(connection: Connection, limit: int, before: int | None, wanted: RequestFilter) -> RequestPage:
    """A page, newest first. With several filters it may be short, or empty, and still not be the last one."""
    low, high = _span(connection, before, wanted)
    searched_to = low if wanted.is_simple else max(low, high - SEARCHED)
    if high <= low:
        return RequestPage([], None)
    found = connection.execute(page(limit, searched_to, high, wanted)).mappings().all()
    rows = [_row(row) for row in found[:limit]]
    if len(found) > limit:
        return RequestPage(rows, found[limit - 1]["seq"])
    return RequestPage(rows, searched_to + 1 if searched_to > low else None)


def page(limit: int, low: int, high: int, wanted: RequestFilter) -> Select[Any]:
    """The statement of a page: places above `low` and up to `high`, one row more than asked for."""
    by_id = len(wanted.id_prefix) > SHORT_PREFIX  # few have it: they are looked up, and all else is compared
    of = _beside_index if by_id else _as_it_is
    statement = select(requests).where(of(requests.c.seq) > low, of(requests.c.seq) <= high)
    for name in ("model_id", "state", "source"):
        if (value := getattr(wanted, name)) is not None:
            statement = statement.where(of(requests.c[name]) == value)
    if wanted.slow:
        statement = statement.where(literal_column("slow = 1"))  # as the partial index has it, not a parameter
    if wanted.since is not None:
        statement = statement.where(_beside_index(requests.c.created_at) >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(_beside_index(requests.c.created_at) <= wanted.until)
    if wanted.id_prefix:
        ids = requests.c.id if by_id else _beside_index(requests.c.id)
        statement = statement.where(ids >= wanted.id_prefix, ids < wanted.id_prefix + "\U0010ffff")
    return statement.order_by(of(requests.c.seq).desc()).limit(limit + 1)


def _as_it_is(column: Any) -> Any:
    return column


def _beside_index(column: Any) -> Any:
    """The column as SQLite compares it without walking along its index."""
    return literal_column(f"+requests.{column.name}", column.type)


def _span(connection: Connection, before: int | None, wanted: RequestFilter) -> tuple[int, int]:
    """Places that may be on the page: above the first and up to the second. The index of times knows both ends."""
    newest = connection.execute(select(func.max(requests.c.seq))).scalar_one() or 0
    low, high = 0, newest if before is None else min(newest, before - 1)
    if wanted.since is not None:
        low = _place(connection, requests.c.created_at >= wanted.since, func.min, newest + 1) - 1
    if wanted.until is not None:
        high = min(high, _place(connection, requests.c.created_at <= wanted.until, func.max, 0))
    return low, high


def _place(connection: Connection, within: ColumnElement[bool], end: Any, otherwise: int) -> int:
    """The first or last place of those within a span, from the rows of the hour at its end: they were received nearly,
    not just, in the order of their places."""
    nearest = connection.execute(select(end(requests.c.created_at)).where(within)).scalar_one()
    if nearest is None:
        return otherwise
    hour = requests.c.created_at.between(nearest - SPREAD_S, nearest + SPREAD_S)
    place: int = connection.execute(select(end(requests.c.seq)).where(within, hour)).scalar_one()
    return place


# ---- what goes ------------------------------------------------------------------------------------------------------


def prune(connection: Connection, before: float, limit: int) -> int:
    """Remove requests that were made before a time and have ended, the oldest first, with all that is kept of them."""
    columns = requests.c
    doomed = (
        select(columns.seq)
        .where(columns.created_at < before, columns.state.not_in(OPEN_STATES))
        .order_by(columns.created_at)
        .limit(limit)
    )
    return connection.execute(delete(requests).where(columns.seq.in_(doomed))).rowcount


def delete_body(connection: Connection, request_id: str) -> bool:
    """Remove the texts of one; False when none were kept."""
    return connection.execute(delete(request_bodies).where(request_bodies.c.request_id == request_id)).rowcount > 0


def delete_bodies(connection: Connection, limit: int) -> int:
    """Remove the texts of some; 0 when none are left."""
    keys = [request_bodies.c.seq]
    doomed = select(*keys).order_by(*keys).limit(limit)
    return connection.execute(delete(request_bodies).where(tuple_(*keys).in_(doomed))).rowcount


def count_bodies(connection: Connection) -> int:
    """Of how many requests texts are kept."""
    return connection.execute(select(func.count()).select_from(request_bodies)).scalar_one()
