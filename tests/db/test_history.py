"""Reading what is asked for, bands that keep every peak, the coarsest rollup, latencies, runs and events by time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from db.connect import MIGRATIONS, open_engine
from db.figures import MEMORY_PARTS, SAMPLE_COLUMNS
from db.histogram import LatencyHistogram
from db.rows import DeviceSampleRow, EngineRunRow, EngineSampleRow
from db.store import Store
from tests.db.clock import NOON, Clock
from tests.db.test_samples import record

NAMES = ("kv_blocks_used", "generation_tokens_per_s", "host_cpu_percent", "ttft_p95_s")


def _fill(store: Store, num_seconds: int) -> None:
    """A run with one second in which far more blocks were used and the CPU was far busier than in all others."""
    store.save_engine_run(EngineRunRow("r", "tiny", "ready", NOON))
    for second in range(num_seconds):
        t = NOON + second + 0.5
        ttft = LatencyHistogram()
        ttft.add(0.1 + second / 10_000)
        peak = second == 777
        row = EngineSampleRow(
            "r",
            t,
            counted_at=t,
            kv_blocks_used=900 if peak else 10 + second % 3,
            generation_tokens_total=7 * second,
            ttft_histogram=ttft,
        )
        store.add_samples(DeviceSampleRow(t=t, host_cpu_percent=100.0 if peak else 5.0), [row])
    store.flush()


def _roll_up(store: Store, clock: Clock, now: float) -> None:
    clock.now = now
    while store.maintain().result().rolled_up:
        pass


@pytest.mark.parametrize("rolled_up", [False, True])
@pytest.mark.parametrize("step_s", [1, 10, 60, 600])
def test_columns_by_name_are_those_of_all_and_bands_keep_every_peak(
    store: Store, clock: Clock, step_s: int, rolled_up: bool
) -> None:
    _fill(store, 1800)
    clock.now = NOON + 1900
    if rolled_up:
        _roll_up(store, clock, NOON + 1900)
    whole = store.samples(NOON, NOON + 1800, step_s)
    part = store.samples(NOON, NOON + 1800, step_s, names=NAMES, bands=["kv_blocks_used", "host_cpu_percent"])
    assert part.columns == {name: whole.columns[name] for name in NAMES}
    assert (part.t, part.step_s) == (whole.t, step_s)
    peak_at = 777 // step_s
    assert part.high["kv_blocks_used"][peak_at] == 900
    assert part.high["host_cpu_percent"][peak_at] == 100
    assert part.low["kv_blocks_used"] == [
        10 if step_s > 1 else 10 + i % 3 if i != 777 else 900 for i in range(len(part.t))
    ]
    assert part.low["host_cpu_percent"][0] == part.high["host_cpu_percent"][0] == 5


def test_the_coarsest_rollup_and_what_it_does_not_hold_yet_join_seamlessly(store: Store, clock: Clock) -> None:
    record(store, "r", range(2000))
    _roll_up(store, clock, NOON + 1500)
    clock.now = NOON + 2100
    series = store.samples(NOON, NOON + 1800, 600)
    assert series.columns["generation_tokens_per_s"] == [pytest.approx(10)] * 3
    assert series.columns["disk_free_bytes"] == [1299.5, 1899.5, 2499.5]


def test_a_month_is_read_from_ten_minute_steps(store: Store, clock: Clock) -> None:
    record(store, "r", range(1200))
    _roll_up(store, clock, NOON + 30 * 86_400)
    series = store.samples(NOON, NOON + 1800, 1800)
    assert series.step_s == 1800
    assert series.columns["disk_free_bytes"] == [1599.5]


@pytest.mark.parametrize("rolled_up", [False, True])
def test_latencies_of_a_range_are_all_of_them(store: Store, clock: Clock, rolled_up: bool) -> None:
    _fill(store, 1800)
    clock.now = NOON + 1900
    if rolled_up:
        _roll_up(store, clock, NOON + 1900)
    found = store.latencies(NOON, NOON + 1800)
    ttft = found.histograms["ttft_histogram"]
    assert (found.since, found.until, ttft.count) == (NOON, NOON + 1800, 1800)
    assert ttft.quantile(0.5) == pytest.approx(0.19, rel=0.26)
    assert found.histograms["itl_histogram"].count == 0
    assert store.latencies(NOON, NOON + 1800, "nobody").histograms["ttft_histogram"].count == 0
    assert store.latencies(NOON + 100, NOON + 110).histograms["ttft_histogram"].count == 10


def test_what_was_recorded_before_has_no_memory_by_part(path: Path) -> None:
    engine = open_engine(path, writes=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        connection.exec_driver_sql(
            "INSERT INTO engine_runs (id, model_id, state, started_at, ended_at, options, effective_settings, memory,"
            " kernels) VALUES ('r', 'tiny', 'stopped', 1, 9, '{}', '[]', '{}', '{}')"
        )
        connection.exec_driver_sql("INSERT INTO engine_samples (engine_run_id, t, kv_blocks_used) VALUES ('r', 5.5, 3)")
    engine.dispose()
    with closing(Store(path, clock=lambda: 10.0)) as store:
        columns = store.samples(5, 6, 1).columns
        assert columns["kv_blocks_used"] == [3]
        assert [columns[name] for name in (*MEMORY_PARTS, "kv_used_bytes")] == [[None]] * 6
        assert set(columns) == set(SAMPLE_COLUMNS)


def test_runs_and_events_of_a_range(store: Store, clock: Clock) -> None:
    for run_id, start, end in (("early", 0, 100), ("across", 50, 500), ("late", 400, None)):
        ended = None if end is None else NOON + end
        store.save_engine_run(EngineRunRow(run_id, "tiny", "stopped", NOON + start, ended_at=ended)).result()
    assert [run.id for run in store.list_engine_runs(since=NOON + 200, until=NOON + 300)] == ["across"]
    assert [run.id for run in store.list_engine_runs(since=NOON + 200)] == ["late", "across"]
    for second in (0, 10, 20):
        clock.now = NOON + second
        store.add_event("load", "info", f"at {second}").result()
    found = store.list_events(since=NOON + 5, until=NOON + 20)
    assert [event.message for event in found] == ["at 10"]
