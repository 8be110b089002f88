"""How long records are kept: the operator's choice where there is one, else the standard.

Owns the names of these settings and their ranges. Knows nothing of how rows are removed.
Invariant: a coarser step is never kept for less time than a finer one, or there would be a hole in the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from db.tables import settings

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Kept:
    """One choice: its standard, its range, and what it counts in."""

    default: int
    least: int
    most: int
    unit_s: int


RETENTION: dict[str, Kept] = {
    "retention_raw_hours": Kept(24, 1, 168, HOUR_S),
    "retention_10s_days": Kept(7, 1, 60, DAY_S),
    "retention_1min_days": Kept(90, 7, 730, DAY_S),
    "retention_records_days": Kept(90, 1, 3650, DAY_S),  # jobs, events, alerts
    "requests_retention_days": Kept(30, 1, 3650, DAY_S),  # with their bodies, where these are kept
}
STEPS = {1: "retention_raw_hours", 10: "retention_10s_days", 60: "retention_1min_days", 600: "retention_1min_days"}


def seconds(values: Mapping[str, Any]) -> dict[str, int]:
    """Setting -> seconds; what is absent or no usable number is the standard."""
    kept = {name: _chosen(values.get(name), each) * each.unit_s for name, each in RETENTION.items()}
    longest = 0
    for name in STEPS.values():
        longest = kept[name] = max(kept[name], longest)
    return kept


def read(connection: Connection) -> dict[str, int]:
    """The same from the settings table."""
    found = connection.execute(select(settings.c.key, settings.c.value).where(settings.c.key.in_(list(RETENTION))))
    return seconds({row.key: row.value for row in found})


def _chosen(value: object, kept: Kept) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return kept.default
    return min(max(value, kept.least), kept.most)
