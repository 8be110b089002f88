"""The recorder: its rows, its feed, its schedule, and that nothing stops it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.devices import DeviceSample, GpuSample
from app.recorder import EngineSnapshot, Recorder, device_row, next_due
from db.figures import SAMPLE_COLUMNS
from db.rows import EngineRunRow
from db.store import Store
from engine.protocol import EngineStats
from tests.db.clock import NOON, Clock


def _sample(t: float, pids: dict[str, int], gpus: tuple[GpuSample, ...] = ()) -> DeviceSample:
    return DeviceSample(
        t=t,
        host_memory_total_bytes=1000,
        host_memory_available_bytes=400,
        host_memory_used_bytes=600,
        host_cpu_percent=12.5,
        app_process_bytes=50,
        engine_process_bytes=dict.fromkeys(pids, 70),
        engine_gpu_bytes=dict.fromkeys(pids),
        disk_free_bytes=9000,
        gpus=gpus,
        gpu_unavailable=None if gpus else "no driver",
    )


def _stats(t: float, tokens: int) -> EngineStats:
    return EngineStats(
        t_s=t,
        num_requests_running=2,
        num_requests_waiting=1,
        kv_blocks_total=100,
        kv_blocks_used=30,
        kv_blocks_cached=5,
        prompt_tokens_total=3 * tokens,
        generation_tokens_total=tokens,
        requests_finished_total=4,
        preemptions_total=1,
        steps_total=tokens,
        step_s_total=0.5,
        drafts_total=6,
        drafted_total=12,
        accepted_total=9,
        draft_s_total=0.25,
        verify_s_total=0.5,
        accepted_per_position_total=[6, 3],
        drafted_per_position_total=[6, 6],
        speculation_gain=1.5,
    )


class Machine:
    """A device sampler and an engine table under the test's control."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.engines: list[EngineSnapshot] = []
        self.threads: set[int] = set()
        self.failures: list[Exception] = []

    def sample(self, pids: dict[str, int]) -> DeviceSample:
        self.threads.add(threading.get_ident())
        if self.failures:
            raise self.failures.pop(0)
        return _sample(self.clock(), pids)

    def show(self, run_id: str, stats: EngineStats | None) -> None:
        self.engines = [each for each in self.engines if each.engine_run_id != run_id]
        self.engines.append(EngineSnapshot(run_id, "tiny", 7, stats, None))


class Bench:
    """A recorder with everything around it."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.store = Store(path, clock)
        self.machine = Machine(clock)
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.recorder = Recorder(self.store, self.machine, lambda: self.machine.engines, self._publish, clock)
        self._news = asyncio.Event()

    def _publish(self, topic: str, data: dict[str, Any]) -> None:
        self.messages.append((topic, data))
        self._news.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for messages until what they tell is enough."""
        while not reached():
            self._news.clear()
            await self._news.wait()

    def sent(self, topic: str) -> list[dict[str, Any]]:
        return [data for name, data in self.messages if name == topic]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON + 0.5)


@pytest.fixture
def bench(tmp_path: Path, clock: Clock) -> Iterator[Bench]:
    bench = Bench(tmp_path / "pizarra.db", clock)
    yield bench
    bench.store.close()


async def test_the_feed_and_the_history_say_the_same(bench: Bench, clock: Clock) -> None:
    for run_id in ("a", "b"):
        bench.store.save_engine_run(EngineRunRow(run_id, "tiny", "ready", NOON))
    for second in (0, 1, 2, 4, 5):  # second 3 is missed
        clock.now = NOON + second + 0.5
        bench.machine.show("a", _stats(clock.now - 0.1, 10 * second))
        bench.machine.show("b", _stats(clock.now - 0.2, 7 * second) if second > 1 else None)
        bench.recorder.observe_ttft("a", 0.25)
        bench.recorder.observe_itl("b", 0.03)
        await bench.recorder.tick()
    clock.now = NOON + 60
    sent = bench.sent("samples")
    assert len(sent) == 5 * 3
    for asked in (None, "a", "b"):
        series = bench.store.samples(NOON, NOON + 6, 1, asked)
        history = {t: {name: column[i] for name, column in series.columns.items()} for i, t in enumerate(series.t)}
        for message in sent:
            if message["engine_run_id"] == asked:
                assert message["columns"] == history[message["t"]], (asked, message["t"])
                assert tuple(message["columns"]) == SAMPLE_COLUMNS
        assert history[NOON + 3] == dict.fromkeys(SAMPLE_COLUMNS)
    both = [message["columns"] for message in sent if message["engine_run_id"] is None]
    assert [columns["generation_tokens_per_s"] for columns in both] == [
        None,
        pytest.approx(10),
        pytest.approx(10),
        None,
        pytest.approx(17),
    ]
    assert both[-1]["engine_process_bytes"] == 140
    assert both[-1]["drafted_total"] == 24
    assert (both[-1]["draft_s_total"], both[-1]["verify_s_total"]) == (0.5, 1.0)
    assert both[-1]["speculation_gain"] == 1.5
    assert [both[-1][f"accepted_per_position_{position}_total"] for position in (0, 1, 2, 14)] == [12, 6, 0, 0]
    assert both[-1]["drafted_per_position_1_total"] == 12


async def test_without_engines_the_machine_is_still_recorded(bench: Bench) -> None:
    await bench.recorder.tick()
    [message] = bench.sent("samples")
    assert message["engine_run_id"] is None
    assert message["columns"]["host_memory_used_bytes"] == 600
    assert message["columns"]["num_requests_running"] is None
    assert bench.recorder.latest is not None
    assert bench.store.samples(NOON, NOON + 1, 1).columns["host_cpu_percent"] == [12.5]


async def test_an_engine_that_loads_has_its_memory_only(bench: Bench) -> None:
    bench.store.save_engine_run(EngineRunRow("a", "tiny", "loading", NOON))
    bench.machine.show("a", None)
    await bench.recorder.tick()
    columns = bench.sent("samples")[1]["columns"]
    assert (columns["engine_process_bytes"], columns["engine_gpu_bytes"], columns["kv_blocks_used"]) == (70, None, None)


async def test_figures_of_a_silent_engine_are_not_repeated_for_ever(bench: Bench, clock: Clock) -> None:
    bench.store.save_engine_run(EngineRunRow("a", "tiny", "ready", NOON))
    bench.machine.show("a", _stats(NOON, 5))
    for later, running in ((20, 2), (40, None)):
        clock.now = NOON + later + 0.5
        await bench.recorder.tick()
        assert bench.sent("samples")[-1]["columns"]["num_requests_running"] == running


async def test_latencies_belong_to_the_second_they_were_seen_in(bench: Bench, clock: Clock) -> None:
    bench.store.save_engine_run(EngineRunRow("a", "tiny", "ready", NOON))
    bench.machine.show("a", None)
    for seconds in (0.1, 0.2, 0.4):
        bench.recorder.observe_ttft("a", seconds)
    await bench.recorder.tick()
    clock.now += 1
    await bench.recorder.tick()
    columns = bench.store.samples(NOON, NOON + 2, 1).columns
    assert columns["ttft_p50_s"] == [pytest.approx(0.2, rel=0.26), None]
    assert columns["itl_p50_s"] == [None, None]


async def test_sampling_runs_on_another_thread(bench: Bench) -> None:
    await bench.recorder.tick()
    assert threading.get_ident() not in bench.machine.threads


async def test_several_gpus_are_one_figure() -> None:
    first = GpuSample(0, "x", 100, 40, 50.0, 60.0, 10.0)
    second = GpuSample(1, "y", 200, None, 100.0, 70.0, None)
    row = device_row(_sample(NOON, {}, (first, second)))
    assert (row.gpu_memory_total_bytes, row.gpu_memory_used_bytes) == (300, 40)
    assert (row.gpu_utilization_percent, row.gpu_temperature_c, row.gpu_power_w) == (75.0, 70.0, 10.0)
    none = device_row(_sample(NOON, {}))
    assert (none.gpu_memory_total_bytes, none.gpu_utilization_percent, none.gpu_power_w) == (None, None, None)


@pytest.mark.parametrize(
    ("now", "last_due", "period_s", "due"),
    [
        (100.0, 0.0, 1.0, 100.5),
        (100.51, 100.5, 1.0, 101.5),  # drift does not add up
        (100.4999, 99.5, 1.0, 100.5),
        (101.4999, 101.5, 1.0, 102.5),  # the timer fired early: not twice
        (109.7, 100.5, 1.0, 110.5),  # missed seconds are skipped
        (50.0, 100.5, 1.0, 50.5),  # the clock was set back
        (100.0, 0.0, 60.0, 150.0),
        (150.2, 150.0, 60.0, 210.0),
    ],
)
def test_ticks_lie_in_the_middle_of_their_period(now: float, last_due: float, period_s: float, due: float) -> None:
    assert next_due(now, last_due, period_s) == due


async def test_the_loop_goes_on_after_failures_and_tells_of_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.recorder.SAMPLE_PERIOD_S", 0.02)
    monkeypatch.setattr("app.recorder.MAINTENANCE_PERIOD_S", 0.05)
    bench = Bench(tmp_path / "pizarra.db", time.time)
    bench.machine.failures = [ValueError("sensor broke"), ValueError("sensor broke"), OSError("other")]
    maintained: list[Any] = []
    maintain = bench.store.maintain

    def noting() -> Any:
        maintained.append(maintain())
        return maintained[-1]

    monkeypatch.setattr(bench.store, "maintain", noting)
    task = asyncio.create_task(bench.recorder.run())
    await bench.until(lambda: len(bench.sent("samples")) >= 3 and len(maintained) >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.store.flush()
    found = [(event.kind, event.severity, event.message) for event in bench.store.list_events()]
    assert found == [
        ("recorder", "error", "recording failed: OSError: other"),
        ("recorder", "error", "recording failed: ValueError: sensor broke"),
    ]
    assert [event["message"] for event in bench.sent("events")] == [message for _, _, message in found[::-1]]
    bench.store.close()


async def test_the_feed_goes_on_when_nothing_can_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.recorder.SAMPLE_PERIOD_S", 0.02)
    bench = Bench(tmp_path / "pizarra.db", time.time)
    bench.store.close()
    task = asyncio.create_task(bench.recorder.run())
    await bench.until(lambda: len(bench.sent("samples")) >= 3)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_event_loop_is_not_held_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "pizarra.db", time.time)
    sample = bench.machine.sample
    entered, released = threading.Event(), threading.Event()

    def slow(pids: dict[str, int]) -> DeviceSample:
        entered.set()
        assert released.wait(30), "the event loop stands still"
        return sample(pids)

    bench.machine.sample = slow  # type: ignore[method-assign]
    tick = asyncio.create_task(bench.recorder.tick())
    assert await asyncio.to_thread(entered.wait, 30)
    assert not tick.done()
    released.set()
    await tick
    bench.store.close()
