"""Reading samples: the grid, gaps, rates, several engines, and which rows answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from db.figures import ACCEPTED_POSITIONS, DEVICE, DRAFTED_POSITIONS, RATES, SAMPLE_COLUMNS
from db.histogram import LatencyHistogram
from db.rows import DeviceSampleRow, EngineRunRow, EngineSampleRow
from db.samples import MAX_POINTS
from db.store import Store
from tests.db.clock import NOON, Clock

API_COLUMNS = [
    *("num_requests_running", "num_requests_waiting", "prompt_tokens_per_s", "generation_tokens_per_s"),
    *("kv_blocks_used", "kv_blocks_cached", "kv_blocks_total", "preemptions_total", "drafts_total", "drafted_total"),
    *("accepted_total", "prompt_tokens_total", "generation_tokens_total", "engine_process_bytes", "app_process_bytes"),
    *("host_memory_used_bytes", "host_memory_total_bytes", "host_cpu_percent"),
    *("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_utilization_percent"),
    *("drafts_per_s", "drafted_tokens_per_s", "accepted_tokens_per_s", "draft_s_total", "verify_s_total"),
    *("speculation_gain", "accepted_per_position_0_total", "accepted_per_position_14_total"),
    *("drafted_per_position_0_total", "drafted_per_position_14_total"),
]


def record(store: Store, run_id: str, seconds: Iterable[int], *, tokens_per_s: int = 10, **figures: Any) -> None:
    """A run's samples in the middle of these seconds after noon; counters start at 0 with the first."""
    seconds = list(seconds)
    store.save_engine_run(EngineRunRow(run_id, "tiny", "ready", NOON + seconds[0]))
    for second in seconds:
        t, tokens = NOON + second + 0.5, (second - seconds[0]) * tokens_per_s
        row = EngineSampleRow(run_id, t, counted_at=t - 0.1, generation_tokens_total=tokens, **figures)
        store.add_samples(DeviceSampleRow(t=t, disk_free_bytes=1000 + second), [row])


def counted_rows(figures: dict[str, Any]) -> dict[str, Any]:
    """Counters by their columns' names as the fields of a row, where those of positions are two lists."""
    fields = {name: value for name, value in figures.items() if "_per_position_" not in name}
    for field, columns in (("accepted_per_position", ACCEPTED_POSITIONS), ("drafted_per_position", DRAFTED_POSITIONS)):
        fields[field] = [figures[name] for name in columns]
    return fields


def finish(store: Store, clock: Clock, now: float) -> None:
    store.flush()
    clock.now = now


def test_every_figure_of_the_api_is_emitted(store: Store) -> None:
    assert set(API_COLUMNS) <= set(SAMPLE_COLUMNS)
    empty = store.samples(NOON, NOON + 3, 1)
    assert set(empty.columns) == set(SAMPLE_COLUMNS)
    assert empty.t == [NOON, NOON + 1, NOON + 2]
    assert all(column == [None, None, None] for column in empty.columns.values())


def test_every_figure_comes_back_as_it_was_recorded(store: Store) -> None:
    histogram = LatencyHistogram()
    histogram.add(0.2)
    names = [name for name in SAMPLE_COLUMNS if not name.endswith(("_per_s", "_p50_s", "_p95_s", "_p99_s"))]
    figures: dict[str, Any] = {name: float(i) for i, name in enumerate(names)}
    engine_names = EngineSampleRow.__dataclass_fields__.keys()
    store.save_engine_run(EngineRunRow("r", "tiny", "ready", NOON))
    for t in (NOON + 0.5, NOON + 1.5):
        device = DeviceSampleRow(t=t, **{k: v for k, v in figures.items() if k in DEVICE.gauges})
        own = {k: v for k, v in counted_rows(figures).items() if k in engine_names}
        row = EngineSampleRow("r", t, counted_at=t, ttft_histogram=histogram, itl_histogram=histogram, **own)
        store.add_samples(device, [row]).result()
    series = store.samples(NOON + 1, NOON + 2, 1)
    found = {name: column[0] for name, column in series.columns.items()}
    assert found.items() >= figures.items()
    assert [found[name] for name in RATES] == [0.0] * len(RATES)
    assert found["ttft_p50_s"] == pytest.approx(0.2, rel=0.26)
    assert found["itl_p95_s"] == pytest.approx(0.2, rel=0.26)


def test_gaps_are_null_and_a_rate_does_not_bridge_them(store: Store, clock: Clock) -> None:
    record(store, "r", [0, 1, 2, 6, 7], num_requests_running=1)
    finish(store, clock, NOON + 20)
    series = store.samples(NOON, NOON + 9, 1)
    assert series.columns["num_requests_running"] == [1, 1, 1, None, None, None, 1, 1, None]
    assert series.columns["generation_tokens_per_s"] == [
        None,
        pytest.approx(10),
        pytest.approx(10),
        None,
        None,
        None,
        None,
        pytest.approx(10),
        None,
    ]
    assert series.columns["disk_free_bytes"] == [1000, 1001, 1002, None, None, None, 1006, 1007, None]


def test_the_first_point_of_a_range_has_its_rate(store: Store, clock: Clock) -> None:
    record(store, "r", range(10))
    finish(store, clock, NOON + 20)
    assert store.samples(NOON + 5, NOON + 6, 1).columns["generation_tokens_per_s"] == [pytest.approx(10)]


@pytest.mark.parametrize("rolled_up", [False, True])
@pytest.mark.parametrize("step_s", [1, 10, 60, 300])
def test_no_rate_crosses_a_restart(store: Store, clock: Clock, step_s: int, rolled_up: bool) -> None:
    record(store, "old", range(45), tokens_per_s=100)
    record(store, "new", range(45, 150), tokens_per_s=7)
    finish(store, clock, NOON + 600)
    if rolled_up:
        store.maintain().result()
    rates = store.samples(NOON, NOON + 150, step_s).columns["generation_tokens_per_s"]
    known = [rate for rate in rates if rate is not None]
    assert len(known) >= 1
    assert all(7 - 1e-6 <= rate <= 100 + 1e-6 for rate in known)
    new_only = store.samples(NOON, NOON + 150, step_s, "new").columns["generation_tokens_per_s"]
    assert {round(rate, 6) for rate in new_only if rate is not None} == {7}


def test_a_stale_reading_gives_no_rate(store: Store) -> None:
    store.save_engine_run(EngineRunRow("r", "tiny", "ready", NOON))
    for second in range(3):
        row = EngineSampleRow("r", NOON + second + 0.5, counted_at=NOON, generation_tokens_total=5)
        store.add_samples(DeviceSampleRow(t=row.t), [row]).result()
    assert store.samples(NOON, NOON + 3, 1).columns["generation_tokens_per_s"] == [None, None, None]


def test_engines_at_the_same_time_add_up_and_one_can_be_asked_alone(store: Store, clock: Clock) -> None:
    store.save_engine_run(EngineRunRow("a", "tiny", "ready", NOON))
    store.save_engine_run(EngineRunRow("b", "small", "ready", NOON))
    for second in range(60):
        t = NOON + second + 0.5
        rows = [
            EngineSampleRow(run, t, counted_at=t, kv_blocks_total=blocks, generation_tokens_total=second * pace)
            for run, blocks, pace in (("a", 100, 10), ("b", 50, 5))
        ]
        store.add_samples(DeviceSampleRow(t=t), rows)
    finish(store, clock, NOON + 100)
    both = store.samples(NOON, NOON + 60, 60).columns
    assert both["kv_blocks_total"] == [150]
    assert both["generation_tokens_per_s"] == [pytest.approx(15)]
    assert both["generation_tokens_total"] == [59 * 15]
    alone = store.samples(NOON, NOON + 60, 60, "b").columns
    assert alone["kv_blocks_total"] == [50]
    assert store.samples(NOON, NOON + 60, 60, "nobody").columns["kv_blocks_total"] == [None]


def test_runs_that_follow_each_other_in_a_step_do_not_add_up(store: Store, clock: Clock) -> None:
    record(store, "a", range(20), kv_blocks_total=100)
    record(store, "b", range(30, 60), kv_blocks_total=200)
    finish(store, clock, NOON + 100)
    columns = store.samples(NOON, NOON + 60, 60).columns
    assert columns["kv_blocks_total"] == [pytest.approx((20 * 100 + 30 * 200) / 50)]
    assert columns["generation_tokens_total"] == [290]
    assert store.samples(NOON, NOON + 60, 60, aggregate="min").columns["kv_blocks_total"] == [100]
    assert store.samples(NOON, NOON + 60, 60, aggregate="max").columns["kv_blocks_total"] == [200]


def test_rolled_up_and_fresh_seconds_join_seamlessly(store: Store, clock: Clock) -> None:
    record(store, "r", range(300))
    finish(store, clock, NOON + 200)
    store.maintain().result()
    clock.now = NOON + 400
    series = store.samples(NOON, NOON + 300, 10)
    assert series.columns["generation_tokens_per_s"] == [pytest.approx(10)] * 30
    assert series.columns["disk_free_bytes"] == [1004.5 + 10 * i for i in range(30)]


def test_the_step_grows_where_finer_rows_are_gone_or_the_range_is_long(store: Store, clock: Clock) -> None:
    clock.now = NOON
    day = 86_400
    assert store.samples(NOON - 3600, NOON, 1).step_s == 1
    assert store.samples(NOON - 3600, NOON, 45).step_s == 45
    assert store.samples(NOON - 2 * day, NOON - 2 * day + 600, 1).step_s == 10
    assert store.samples(NOON - 30 * day, NOON - 30 * day + 600, 1).step_s == 60
    assert store.samples(NOON - 30 * day, NOON - 30 * day + 6000, 100).step_s == 120
    long = store.samples(NOON - 80 * day, NOON, 1)
    assert long.step_s % 60 == 0
    assert len(long.t) <= MAX_POINTS + 1


def test_acceptance_of_any_window_and_position_can_be_told(store: Store, clock: Clock) -> None:
    """Three seconds with 10 drafts of 2 in each: the first accepted 8 times, the second 4 times."""
    store.save_engine_run(EngineRunRow("r", "tiny", "ready", NOON))
    for second in range(4):
        t = NOON + second + 0.5
        row = EngineSampleRow(
            "r",
            t,
            counted_at=t,
            drafts_total=10 * second,
            drafted_total=20 * second,
            accepted_total=12 * second,
            accepted_per_position=[8 * second, 4 * second],
            drafted_per_position=[10 * second, 10 * second],
        )
        store.add_samples(DeviceSampleRow(t=t), [row])
    finish(store, clock, NOON + 60)
    columns = store.samples(NOON + 1, NOON + 4, 1).columns
    rates = [columns[name][-1] for name in ("drafts_per_s", "drafted_tokens_per_s", "accepted_tokens_per_s")]
    assert rates == [pytest.approx(10), pytest.approx(20), pytest.approx(12)]

    def grown(name: str) -> float:
        first, last = columns[name][0], columns[name][-1]
        assert first is not None
        assert last is not None
        return last - first

    assert [grown(name) / grown("drafts_total") for name in ACCEPTED_POSITIONS[:3]] == [0.8, 0.4, 0.0]
    assert [grown(name) for name in DRAFTED_POSITIONS[:3]] == [20, 20, 0]
    store.maintain().result()
    rolled = store.samples(NOON, NOON + 10, 10).columns
    assert rolled[ACCEPTED_POSITIONS[0]] == [24]


def test_the_gain_of_several_engines_is_their_mean(store: Store, clock: Clock) -> None:
    gains = {"a": 1.5, "b": 1.1, "c": None}
    for run_id in gains:
        store.save_engine_run(EngineRunRow(run_id, "tiny", "ready", NOON))
    rows = [EngineSampleRow(run_id, NOON + 0.5, speculation_gain=gain) for run_id, gain in gains.items()]
    store.add_samples(DeviceSampleRow(t=NOON + 0.5), rows)
    finish(store, clock, NOON + 20)
    assert store.samples(NOON, NOON + 1, 1).columns["speculation_gain"] == [pytest.approx(1.3)]
    assert store.samples(NOON, NOON + 1, 1, "c").columns["speculation_gain"] == [None]
