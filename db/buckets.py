"""Merging samples into buckets of time, as SQL expressions: the one definition that rollups and readings share.

Owns how a figure merges: gauges by min, max, sum and count, counters by first and last, histograms by addition.
Knows nothing of retention, ranges or rates.
Invariant: merging buckets of buckets gives what merging the samples themselves gives.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Float, FromClause, Integer, Select, cast, func, literal, select

from db.figures import Figures
from db.tables import ROLLUPS, SAMPLES


def _merges(figures: Figures) -> dict[str, Any]:
    """Column of a bucket -> SQL function that merges it."""
    merges: dict[str, Any] = {"first_t": func.min, "last_t": func.max, "num_samples": func.sum}
    if figures.counters:
        merges |= {"counted_first": func.min, "counted_last": func.max}
    for name in figures.gauges:
        merges |= {f"{name}_min": func.min, f"{name}_max": func.max, f"{name}_sum": func.sum, f"{name}_count": func.sum}
    for name in figures.counters:
        merges |= {f"{name}_first": func.min, f"{name}_last": func.max}
    return merges | dict.fromkeys(figures.histograms, func.merge_histograms)


def raw(figures: Figures, since: float, until: float) -> Select[Any]:
    """The samples of [since, until), each as a bucket of its own."""
    table = SAMPLES[figures.name]
    columns: list[ColumnElement[Any]] = [table.c.engine_run_id] if figures.per_run else []
    columns += [table.c.t, table.c.t.label("first_t"), table.c.t.label("last_t"), literal(1).label("num_samples")]
    if figures.counters:
        columns += [table.c.counted_at.label("counted_first"), table.c.counted_at.label("counted_last")]
    for name in figures.gauges:
        value = table.c[name]
        columns += [value.label(f"{name}_{part}") for part in ("min", "max", "sum")]
        columns.append(cast(value.is_not(None), Integer).label(f"{name}_count"))
    for name in figures.counters:
        columns += [table.c[name].label(f"{name}_{part}") for part in ("first", "last")]
    columns += [table.c[name] for name in figures.histograms]
    return select(*columns).where(table.c.t >= since, table.c.t < until)


def rolled(figures: Figures, rollup_step_s: int, since: float, until: float) -> Select[Any]:
    """The rollup's buckets that start in [since, until), with the columns of `raw` in the same order."""
    table = ROLLUPS[figures.name]
    columns: list[ColumnElement[Any]] = [table.c.engine_run_id] if figures.per_run else []
    columns += [table.c.t, *(table.c[name] for name in _merges(figures))]
    return select(*columns).where(table.c.step_s == rollup_step_s, table.c.t >= since, table.c.t < until)


def merged(figures: Figures, source: FromClause, step_s: int) -> Select[Any]:
    """`source` in buckets of `step_s`, one row a bucket and run, oldest first."""
    bucket = (cast(cast(source.c.t, Float) / step_s, Integer) * step_s).label("t")
    keys: list[ColumnElement[Any]] = [source.c.engine_run_id] if figures.per_run else []
    columns = [merge(source.c[name]).label(name) for name, merge in _merges(figures).items()]
    return select(*keys, bucket, *columns).group_by(*keys, bucket).order_by(bucket)
