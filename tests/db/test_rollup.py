"""Upkeep: rollups equal what the samples themselves give, and nothing goes before its time."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

import db.rollup
from db.connect import open_engine
from db.figures import DEVICE, ENGINE
from db.histogram import LatencyHistogram
from db.rows import DeviceSampleRow, EngineRunRow, EngineSampleRow, JobRow
from db.store import Store
from db.tables import ROLLUPS, SAMPLES
from tests.db.clock import NOON, Clock
from tests.db.test_samples import counted_rows, record

HOUR, DAY = 3600, 86_400

LATENCIES = st.lists(st.floats(1e-5, 100.0), max_size=3)
SECONDS = st.fixed_dictionaries(
    {
        "skipped": st.sampled_from([0, 0, 0, 1, 7, 55]),
        "restart": st.sampled_from([False] * 6 + [True]),
        "gauges": st.lists(st.none() | st.integers(0, 1000), min_size=len(ENGINE.gauges), max_size=len(ENGINE.gauges)),
        "growth": st.none() | st.integers(0, 50),
        "ttft": LATENCIES,
        "itl": LATENCIES,
    }
)


def _rows(seconds: list[dict[str, Any]]) -> list[EngineSampleRow]:
    rows: list[EngineSampleRow] = []
    t, run, total = NOON + 0.5, 0, 0
    for second in seconds:
        t += 1 + second["skipped"]
        if second["restart"]:
            run, total = run + 1, 0
        counted: dict[str, Any] = {}
        if second["growth"] is not None:
            total += second["growth"]
            counted = {"counted_at": t - 0.2, **counted_rows(dict.fromkeys(ENGINE.counters, total))}
        histograms: dict[str, Any] = {}
        for name in ("ttft", "itl"):
            histogram = LatencyHistogram()
            for latency in second[name]:
                histogram.add(latency)
            histograms[f"{name}_histogram"] = histogram
        gauges: dict[str, Any] = dict(zip(ENGINE.gauges, second["gauges"], strict=True))
        rows.append(EngineSampleRow(f"run{run}", t, **counted, **gauges, **histograms))
    return rows


def _expected(rows: list[EngineSampleRow], step_s: int) -> dict[tuple[float, str], dict[str, Any]]:
    """Rollups computed from the samples in plain Python."""
    groups: dict[tuple[float, str], list[EngineSampleRow]] = defaultdict(list)
    for row in rows:
        groups[math.floor(row.t / step_s) * step_s, row.engine_run_id].append(row)
    return {key: _merged(group) for key, group in groups.items()}


def _merged(group: list[EngineSampleRow]) -> dict[str, Any]:
    counted = [row.counted_at for row in group if row.counted_at is not None]
    merged: dict[str, Any] = {
        "first_t": group[0].t,
        "last_t": group[-1].t,
        "num_samples": len(group),
        "counted_first": min(counted, default=None),
        "counted_last": max(counted, default=None),
    }
    for name in ENGINE.gauges:
        known = [value for row in group if (value := row.figures()[name]) is not None]
        merged |= {f"{name}_min": min(known, default=None), f"{name}_max": max(known, default=None)}
        merged |= {f"{name}_sum": sum(known) if known else None, f"{name}_count": len(known)}
    for name in ENGINE.counters:
        known = [value for row in group if (value := row.figures()[name]) is not None]
        merged |= {f"{name}_first": known[0] if known else None, f"{name}_last": known[-1] if known else None}
    for name in ENGINE.histograms:
        histogram = LatencyHistogram()
        for row in group:
            histogram.merge(getattr(row, name))
        merged[name] = histogram.dumps()
    return merged


def _stored(path: Path, step_s: int) -> dict[tuple[float, str], dict[str, Any]]:
    engine = open_engine(path, writes=False)
    table = ROLLUPS[ENGINE.name]
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(select(table).where(table.c.step_s == step_s)).mappings()]
    engine.dispose()
    keys = ("step_s", "t", "engine_run_id")
    return {(row["t"], row["engine_run_id"]): {k: v for k, v in row.items() if k not in keys} for row in rows}


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])  # a file each: shrinking is slow
@given(seconds=st.lists(SECONDS, min_size=1, max_size=80), rounds_after=st.lists(st.integers(5, 4000), max_size=3))
def test_rollups_equal_what_the_samples_give(seconds: list[dict[str, Any]], rounds_after: list[int]) -> None:
    rows = _rows(seconds)
    with tempfile.TemporaryDirectory() as folder:
        clock, path = Clock(), Path(folder) / "pizarra.db"
        store = Store(path, clock)
        for run_id in {row.engine_run_id for row in rows}:
            store.save_engine_run(EngineRunRow(run_id, "tiny", "ready", NOON))
        remaining = list(rows)
        for after in sorted({*rounds_after, 100_000}):  # upkeep comes while samples still do
            clock.now = NOON + after
            while remaining and remaining[0].t < clock.now:
                row = remaining.pop(0)
                store.add_samples(DeviceSampleRow(t=row.t), [row])
            store.maintain().result()
        for step_s in (10, 60):
            assert _stored(path, step_s) == _expected(rows, step_s)
        store.close()


def _counts(path: Path) -> dict[str, int]:
    engine = open_engine(path, writes=False)
    counts = {}
    with engine.connect() as connection:
        for kind in (ENGINE.name, DEVICE.name):
            counts[f"{kind}_raw"] = connection.execute(select(func.count()).select_from(SAMPLES[kind])).scalar_one()
            table = ROLLUPS[kind]
            for step_s in (10, 60):
                statement = select(func.count()).select_from(table).where(table.c.step_s == step_s)
                counts[f"{kind}_{step_s}"] = connection.execute(statement).scalar_one()
    engine.dispose()
    return counts


def test_only_settled_buckets_are_merged(store: Store, clock: Clock, path: Path) -> None:
    record(store, "r", range(60))
    clock.now = NOON + 24.9
    store.maintain().result()
    assert _counts(path)["engine_10"] == 1
    clock.now = NOON + 25
    assert store.maintain().result().rolled_up == 2  # one bucket, of the engine and of the machine
    assert store.maintain().result().rolled_up == 0
    assert _counts(path)["engine_60"] == 0


def test_each_tier_goes_when_its_time_is_over(store: Store, clock: Clock, path: Path) -> None:
    record(store, "r", range(120))
    clock.now = NOON + 200
    store.maintain().result()
    full = {"engine_raw": 120, "engine_10": 12, "engine_60": 2}
    full |= {name.replace("engine", "device"): count for name, count in full.items()}
    assert _counts(path) == full
    clock.now = NOON + 24 * HOUR
    store.maintain().result()
    assert _counts(path) == full
    for age, gone in ((DAY + 60, {"raw": 60}), (8 * DAY, {"raw": 0, "10": 0}), (91 * DAY, {"60": 0})):
        clock.now = NOON + age
        store.maintain().result()
        full |= {f"{kind}_{tier}": count for kind in ("engine", "device") for tier, count in gone.items()}
        assert _counts(path) == full


def test_nothing_goes_before_it_was_merged(
    store: Store, clock: Clock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program was off for a month: upkeep catches up in bounded rounds and loses nothing on the way."""
    monkeypatch.setattr(db.rollup, "MAX_WINDOW_S", 60)
    monkeypatch.setattr(db.rollup, "MAX_PRUNED_ROWS", 25)
    record(store, "r", range(180))
    clock.now = NOON + 30 * DAY
    expected_pruned = 0
    seen = []
    for _ in range(20):
        report = store.maintain().result()
        counts = _counts(path)
        assert counts["engine_raw"] >= 180 - 60 * (counts["engine_60"])
        expected_pruned += report.pruned
        seen.append(counts)
    assert seen[0]["engine_60"] == 1
    assert seen[0]["engine_raw"] == 155
    assert seen[-1] == {
        "engine_raw": 0,
        "engine_10": 0,
        "engine_60": 3,
        "device_raw": 0,
        "device_10": 0,
        "device_60": 3,
    }
    assert expected_pruned == 2 * (180 + 18)
    series = store.samples(NOON, NOON + 180, 1)
    assert series.step_s == 60
    assert series.columns["disk_free_bytes"] == [1029.5, 1089.5, 1149.5]
    assert series.columns["generation_tokens_per_s"] == [pytest.approx(10)] * 3


def test_old_jobs_and_events_go(store: Store, clock: Clock) -> None:
    store.save_job(JobRow("old", "pull", "tiny", "succeeded", NOON, finished_at=NOON))
    store.save_job(JobRow("open", "pull", "tiny", "running", NOON))
    store.add_event("start", "info", "up").result()
    clock.now = NOON + 91 * DAY
    store.add_event("start", "info", "up again").result()
    assert store.maintain().result().pruned == 2
    assert [row.id for row in store.list_jobs()] == ["open"]
    assert [event.message for event in store.list_events()] == ["up again"]


def test_samples_of_a_device_alone_are_kept_too(store: Store, clock: Clock, path: Path) -> None:
    store.add_samples(DeviceSampleRow(t=NOON + 0.5, host_cpu_percent=50.0)).result()
    clock.now = NOON + 2 * DAY
    store.maintain().result()
    series = store.samples(NOON, NOON + 60, 60)
    assert series.columns["host_cpu_percent"] == [50.0]
    assert asdict(series)["columns"]["num_requests_running"] == [None]
