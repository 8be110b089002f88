"""Reading samples back: columns over an even grid of times, from the coarsest rows that can answer.

Owns the choice of rows, rates, and how several engine runs become one line. Knows nothing of writing or upkeep.
Invariants: a time without samples is None, never 0; a rate is the growth of a counter within one engine run between
two readings that no gap parts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import Connection, RowMapping, Subquery, func, select, union_all

from db.buckets import merged, raw, rolled
from db.figures import DEVICE, ENGINE, QUANTILES, RATES, SAMPLE_COLUMNS, Figures, of_several
from db.histogram import LatencyHistogram
from db.rollup import RAW, TIERS, Tier, kept_tiers, mark
from db.rows import Latencies, SampleSeries

Aggregate = Literal["mean", "min", "max"]
Values = dict[str, float | None]

MAX_POINTS = 5000

_COMBINE: dict[Aggregate, Callable[[Sequence[tuple[float, int]]], float]] = {
    "mean": lambda parts: sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts),
    "min": lambda parts: min(value for value, _ in parts),
    "max": lambda parts: max(value for value, _ in parts),
}


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked: [since, until] in steps of at least `step_s`, of one run or of all."""

    since: float
    until: float
    step_s: int
    engine_run_id: str | None
    aggregate: Aggregate
    names: tuple[str, ...] = SAMPLE_COLUMNS  # the columns wanted
    bands: tuple[str, ...] = ()  # gauges whose smallest and largest reading of each step are wanted, too


def read(connection: Connection, query: Query, now: float) -> SampleSeries:
    """The series. Its step is larger than asked where finer rows are gone or the grid would exceed MAX_POINTS."""
    tier, step_s = _choose(query, now, kept_tiers(connection))
    start = math.floor(query.since / step_s) * step_s
    times = [float(t) for t in range(start, math.ceil(query.until), step_s)]
    engine, device = (_only(figures, {*query.names, *query.bands}) for figures in (ENGINE, DEVICE))
    # One bucket more in front: the first rate needs the reading before it.
    rows = {
        figures.name: _buckets(connection, figures, tier, step_s, start - step_s, query)
        for figures in (engine, device)
        if figures.gauges or figures.counters or figures.histograms
    }

    def columns(names: tuple[str, ...], aggregate: Aggregate) -> dict[str, list[float | None]]:
        of_engines = _engine_values(_only(engine, names), rows.get(ENGINE.name, ()), step_s, aggregate)
        of_device = {row["t"]: _gauges(_only(device, names), row, aggregate) for row in rows.get(DEVICE.name, ())}
        found: dict[str, list[float | None]] = {}
        for name in names:
            source = of_device if name in DEVICE.gauges else of_engines
            found[name] = [source[t].get(name) if t in source else None for t in times]
        return found

    return SampleSeries(
        t=times,
        columns=columns(query.names, query.aggregate),
        step_s=step_s,
        low=columns(query.bands, "min"),
        high=columns(query.bands, "max"),
    )


def latencies(connection: Connection, since: float, until: float, engine_run_id: str | None, now: float) -> Latencies:
    """All latencies of [since, until), widened to whole buckets that are no coarser than a hundredth of it."""
    tiers = kept_tiers(connection)
    coarse = [tier for tier in tiers if now - since > tier.keep_s or tier.step_s <= (until - since) / 100]
    tier = coarse[-1] if coarse else RAW
    start, end = (rounded(t / tier.step_s) * tier.step_s for rounded, t in ((math.floor, since), (math.ceil, until)))
    figures = replace(ENGINE, gauges=(), counters=())
    rows = _rows(connection, figures, tier, start, end)
    statement = select(*(func.merge_histograms(rows.c[name]).label(name) for name in figures.histograms))
    if engine_run_id is not None:
        statement = statement.where(rows.c.engine_run_id == engine_run_id)
    row = connection.execute(statement).mappings().one()
    return Latencies(start, end, {name: LatencyHistogram.loads(row[name]) for name in figures.histograms})


def _only(figures: Figures, names: Collection[str]) -> Figures:
    """What has to be read for these columns."""
    counters = {counter for name, counter in RATES.items() if name in names} | set(names)
    histograms = {histogram for name, (histogram, _) in QUANTILES.items() if name in names}
    return replace(
        figures,
        gauges=tuple(name for name in figures.gauges if name in names),
        counters=tuple(name for name in figures.counters if name in counters),
        histograms=tuple(name for name in figures.histograms if name in histograms),
    )


def _choose(query: Query, now: float, tiers: Sequence[Tier]) -> tuple[Tier, int]:
    """The coarsest tier whose steps fill ours and that reaches back far enough; else the finest that does."""
    step_s = max(query.step_s, 1, math.ceil((query.until - query.since) / MAX_POINTS))
    reaching = [tier for tier in tiers if now - query.since <= tier.keep_s] or [tiers[-1]]
    for tier in reversed(reaching):
        if step_s % tier.step_s == 0:
            return tier, step_s
    return reaching[0], math.ceil(step_s / reaching[0].step_s) * reaching[0].step_s


def _buckets(
    connection: Connection, figures: Figures, tier: Tier, step_s: int, since: float, query: Query
) -> Sequence[RowMapping]:
    """The tier's rows, merged to our step."""
    rows = _rows(connection, figures, tier, since, query.until)
    statement = merged(figures, rows, step_s)
    if figures.per_run and query.engine_run_id is not None:
        statement = statement.where(rows.c.engine_run_id == query.engine_run_id)
    return connection.execute(statement).mappings().all()


def _rows(connection: Connection, figures: Figures, tier: Tier, since: float, until: float) -> Subquery:
    """The tier's rows up to where it is complete, after that those of the next finer one, and so on to the samples."""
    parts = []
    for each in [each for each in TIERS[:0:-1] if each.step_s <= tier.step_s]:
        end = min(mark(connection, each), until)
        if end > since:
            parts.append(rolled(figures, each.step_s, since, end))
            since = end
    return union_all(*parts, raw(figures, since, until)).subquery()


def _gauges(figures: Figures, row: RowMapping, aggregate: Aggregate) -> Values:
    values: Values = {}
    for name in figures.gauges:
        count = row[f"{name}_count"]
        if aggregate == "mean":
            values[name] = row[f"{name}_sum"] / count if count else None
        else:
            values[name] = row[f"{name}_{aggregate}"]
    return values


def _engine_values(
    figures: Figures, rows: Iterable[RowMapping], step_s: int, aggregate: Aggregate
) -> dict[float, Values]:
    """Bucket -> figures, all runs of the bucket taken together."""
    before: dict[str, RowMapping] = {}
    by_time: dict[float, list[tuple[RowMapping, Values]]] = defaultdict(list)
    for row in rows:
        previous = before.get(row["engine_run_id"])
        if previous is not None and previous["t"] != row["t"] - step_s:
            previous = None
        before[row["engine_run_id"]] = row
        values = _gauges(figures, row, aggregate)
        values |= {name: row[f"{name}_last"] for name in figures.counters}
        values |= {name: _rate(of, row, previous) for name, of in RATES.items() if of in figures.counters}
        by_time[row["t"]].append((row, values))
    return {t: _together(figures, runs, aggregate) for t, runs in by_time.items()}


def _rate(counter: str, row: RowMapping, previous: RowMapping | None) -> float | None:
    """Growth per second since the neighbouring bucket's last reading, or since this bucket's own first."""
    base, base_t = row[f"{counter}_first"], row["counted_first"]
    if previous is not None and previous[f"{counter}_last"] is not None:
        base, base_t = previous[f"{counter}_last"], previous["counted_last"]
    last = row[f"{counter}_last"]
    if last is None or row["counted_last"] <= base_t:
        return None
    growth: float = (last - base) / (row["counted_last"] - base_t)
    return growth


def _together(figures: Figures, runs: Sequence[tuple[RowMapping, Values]], aggregate: Aggregate) -> Values:
    """Runs at the same time add up; runs that followed each other within the bucket take turns."""
    turns = _turns(runs)
    values: Values = {}
    rates = [name for name, of in RATES.items() if of in figures.counters]
    for name in (*figures.gauges, *rates):
        totals = [(of_several(name, [each[name] for each in turn]), weight) for turn, weight in turns]
        parts = [(total, weight) for total, weight in totals if total is not None]
        how = "mean" if name in RATES else aggregate
        values[name] = _COMBINE[how](parts) if parts else None
    for name in figures.counters:
        values[name] = of_several(name, [each[name] for each in turns[-1][0]])
    for histogram in figures.histograms:
        total_histogram = LatencyHistogram()
        for row, _ in runs:
            total_histogram.merge(LatencyHistogram.loads(row[histogram]))
        values |= {name: total_histogram.quantile(q) for name, (of, q) in QUANTILES.items() if of == histogram}
    return values


def _turns(runs: Sequence[tuple[RowMapping, Values]]) -> list[tuple[list[Values], int]]:
    """Groups of runs that overlap in time, in order, each with the samples it lasted."""
    turns: list[tuple[list[Values], int]] = []
    turn_end = -math.inf
    for row, values in sorted(runs, key=lambda run: run[0]["first_t"]):
        if turns and row["first_t"] <= turn_end:
            members, weight = turns[-1]
            turns[-1] = ([*members, values], max(weight, row["num_samples"]))
        else:
            turns.append(([values], row["num_samples"]))
        turn_end = max(turn_end, row["last_t"])
    return turns
