"""Alert rules against scripted figures: each of the first rules begins and ends, and the arithmetic behind them."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.alert_baseline import HOUR_S, Latencies, LatencyBook, baseline, p95
from app.alert_facts import AlertFacts
from app.alert_judge import CLEAR_S, UNKNOWN_S, AlertJudge, Fired, Resolved
from app.alert_metrics import METRICS, MIN_BASELINE_REQUESTS, MIN_WINDOW_REQUESTS, Values
from app.devices import DeviceSample, GpuSample
from db.alert_rows import AlertRow, AlertRuleRow, RequestLatency
from db.store import Store
from engine.protocol import EngineStats

NOON = 1_800_000_000.0  # a full hour
GIB = 2**30
QUIET = Latencies({}, {})


def rule(**changes: Any) -> AlertRuleRow:
    first = AlertRuleRow("r", "requests_waiting", "above", 100.0, 10.0, "warning")
    return replace(first, **changes)


@dataclass
class Scene:
    """An engine and a machine whose figures a test writes; `after` lets time go by, a second at a time."""

    rules: list[AlertRuleRow]
    now: float = NOON
    waiting: int = 0
    drafted_per_s: int = 0
    accepted_per_s: int = 0
    state: str = "ready"
    loaded: bool = True
    host_used: float = 0.5
    gpu_used: float | None = None
    disk_free: float = 50 * GIB
    latencies: Latencies = QUIET
    drafted: int = 0
    accepted: int = 0
    changes: list[Fired | Resolved] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.judge = AlertJudge()
        self.facts = AlertFacts(self._engines, self._sample, SimpleNamespace(ttft_p95=lambda _run_id: 0.25))

    def after(self, seconds: int) -> list[tuple[str, str]]:
        """What began and ended meanwhile: (rule, "fired" or why it ended)."""
        found = []
        for _ in range(seconds):
            self.now += 1.0
            self.drafted += self.drafted_per_s
            self.accepted += self.accepted_per_s
            for change in self.judge.judge(self.rules, self.facts.read(self.now, self.latencies), self.now):
                self.changes.append(change)
                rule_id = change.rule.id if isinstance(change, Fired) else change.rule_id
                found.append((rule_id, "fired" if isinstance(change, Fired) else change.by))
        return found

    def _engines(self) -> list[Any]:
        stats = EngineStats(
            t_s=self.now,
            num_requests_running=1,
            num_requests_waiting=self.waiting,
            kv_blocks_total=100,
            kv_blocks_used=40,
            kv_blocks_cached=0,
            prompt_tokens_total=0,
            generation_tokens_total=int(10 * (self.now - NOON)),
            requests_finished_total=0,
            preemptions_total=0,
            steps_total=0,
            step_s_total=0.0,
            drafted_total=self.drafted,
            accepted_total=self.accepted,
        )
        supervisor = SimpleNamespace(
            run_id="run", ready=object(), state=self.state, alive=self.state == "ready", stats=stats
        )
        return [SimpleNamespace(supervisor=supervisor, model_id="m")] if self.loaded else []

    def _sample(self) -> DeviceSample:
        used = int(self.host_used * 16 * GIB)
        gpus = () if self.gpu_used is None else (self._gpu(self.gpu_used),)
        return DeviceSample(
            t=self.now,
            host_memory_total_bytes=16 * GIB,
            host_memory_available_bytes=16 * GIB - used,
            host_memory_used_bytes=used,
            host_cpu_percent=12.0,
            app_process_bytes=1,
            engine_process_bytes={},
            engine_gpu_bytes={},
            disk_free_bytes=int(self.disk_free),
            gpus=gpus,
            gpu_unavailable=None if gpus else "there is none",
        )

    @staticmethod
    def _gpu(used: float) -> GpuSample:
        return GpuSample(0, "test", 80 * GIB, int(used * 80 * GIB), 1.0, 60.0, 100.0)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """With the rules that a new installation begins with."""
    store = Store(tmp_path / "pizarra.db")
    rules = store.alerts.rules()
    store.close()
    return Scene(rules)


def test_a_new_installation_has_the_six_rules(scene: Scene) -> None:
    found = {each.id: (each.metric, each.comparison, each.threshold) for each in scene.rules if each.enabled}
    assert found == {
        "requests_waiting": ("requests_waiting", "above", 100),
        "latency_p95_ratio": ("latency_p95_ratio", "above", 2),
        "device_memory_percent": ("device_memory_percent", "above", 98),
        "acceptance_percent": ("acceptance_percent", "below", 30),
        "engine_down": ("engine_down", "above", 0),
        "disk_free_gib": ("disk_free_gib", "below", 2),
    }
    assert scene.after(120) == []


BAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what makes each rule hold, and what ends it
    "requests_waiting": ({"waiting": 101}, {"waiting": 90}),
    "latency_p95_ratio": (
        {"latencies": Latencies({"m": 4.2}, {"m": 2.0})},
        {"latencies": Latencies({"m": 2.2}, {"m": 2.0})},
    ),
    "device_memory_percent": ({"gpu_used": 0.985}, {"gpu_used": 0.6}),
    "acceptance_percent": ({"drafted_per_s": 100, "accepted_per_s": 20}, {"accepted_per_s": 90}),
    "engine_down": ({"state": "failed"}, {"state": "ready"}),
    "disk_free_gib": ({"disk_free": 1.5 * GIB}, {"disk_free": 3 * GIB}),
}


@pytest.mark.parametrize("rule_id", BAD)
def test_each_first_rule_begins_after_its_time_and_ends(scene: Scene, rule_id: str) -> None:
    worse, better = BAD[rule_id]
    wait_s = int(next(each.for_s for each in scene.rules if each.id == rule_id))
    for name, value in worse.items():
        setattr(scene, name, value)
    started = scene.now
    fired: list[tuple[str, str]] = []
    while not fired:
        assert scene.now - started < wait_s + 10, "it did not begin"
        fired = scene.after(1)
    assert fired == [(rule_id, "fired")]
    assert scene.now - started >= wait_s
    assert scene.after(60) == [], "it is told once"
    for name, value in better.items():
        setattr(scene, name, value)
    ended = scene.after(400)
    assert ended == [(rule_id, "value")]


def test_without_a_gpu_the_device_is_the_machine(scene: Scene) -> None:
    scene.host_used = 0.99
    assert scene.after(40) == [("device_memory_percent", "fired")]
    assert scene.changes[0].subject == "host"


def test_what_cannot_be_known_begins_nothing(scene: Scene) -> None:
    scene.drafted_per_s, scene.accepted_per_s = 1, 0  # too few in any five minutes? 300 of them: known after 200 s
    scene.latencies = Latencies({"m": 9.0}, {"m": None})
    assert scene.after(190) == []


def test_a_short_peak_is_only_pending(scene: Scene) -> None:
    scene.waiting = 500
    assert scene.after(9) == []
    assert [watch.state for watch in scene.judge.watches.values()] == ["pending"]
    scene.waiting = 0
    assert scene.after(1) == []
    assert scene.judge.watches == {}
    scene.waiting = 500
    assert scene.after(9) == [], "the time begins anew"


def test_a_value_around_the_threshold_does_not_flutter() -> None:
    judge, one = AlertJudge(), rule(for_s=0.0)
    noise = random.Random(7)
    changes = []
    for second in range(600):
        values: Values = {"requests_waiting": {"m": 100 + noise.uniform(-1.5, 1.5)}}
        changes += judge.judge([one], values, NOON + second)
    assert len(changes) == 1
    assert isinstance(changes[0], Fired)


def test_it_ends_only_after_the_value_has_stayed_back() -> None:
    judge, one = AlertJudge(), rule(for_s=0.0)

    def at(value: float, t: float) -> list[Fired | Resolved]:
        return judge.judge([one], {"requests_waiting": {"m": value}}, NOON + t)

    assert len(at(200.0, 0)) == 1
    assert at(50.0, 1) == []
    assert at(50.0, CLEAR_S) == []
    assert at(300.0, CLEAR_S + 1) == [], "back again before the time was over"
    assert at(50.0, CLEAR_S + 2) == []
    (ended,) = at(50.0, 2 * CLEAR_S + 2)
    assert isinstance(ended, Resolved)
    assert (ended.by, ended.watch.worst) == ("value", 300.0)


def test_an_alert_ends_with_its_subject_its_rule_and_its_measurement() -> None:
    one = rule(for_s=0.0)
    high: Values = {"requests_waiting": {"m": 200.0}}
    unknown: Values = {"requests_waiting": {"m": None}}

    def firing() -> AlertJudge:
        judge = AlertJudge()
        assert len(judge.judge([one], high, NOON)) == 1
        return judge

    assert [change.by for change in firing().judge([one], {}, NOON + 1) if isinstance(change, Resolved)] == ["gone"]
    off = replace(one, enabled=False)
    assert [change.by for change in firing().judge([off], high, NOON + 1) if isinstance(change, Resolved)] == ["rule"]
    judge = firing()
    assert judge.judge([one], unknown, NOON + 1) == []
    assert judge.judge([one], unknown, NOON + UNKNOWN_S) == []
    (ended,) = judge.judge([one], unknown, NOON + 1 + UNKNOWN_S)
    assert isinstance(ended, Resolved)
    assert ended.by == "unknown"


def test_what_fired_before_a_restart_goes_on() -> None:
    row = AlertRow(5, "r", "requests_waiting", "above", 100, "warning", "m", "firing", 150, 150, NOON, NOON)
    judge = AlertJudge([row])
    assert judge.judge([rule(for_s=0.0)], {"requests_waiting": {"m": 160.0}}, NOON + 1) == []
    assert judge.watches[("r", "m")].alert_id == 5
    assert [each.by for each in judge.judge([rule()], {}, NOON + 2) if isinstance(each, Resolved)] == ["gone"]


def test_every_metric_has_a_value_for_an_engine_and_a_machine_that_tell_all(scene: Scene) -> None:
    scene.gpu_used, scene.drafted_per_s, scene.accepted_per_s = 0.4, 100, 60
    scene.latencies = Latencies({"m": 3.0}, {"m": 2.0})
    scene.after(30)
    values = scene.facts.read(scene.now, scene.latencies)
    assert values.keys() == METRICS.keys()
    assert {name: next(iter(each.values())) for name, each in values.items()} == pytest.approx(
        {
            "requests_waiting": 0,
            "requests_running": 1,
            "tokens_per_s": 10,
            "kv_used_percent": 40,
            "ttft_p95_s": 0.25,
            "latency_p95_s": 3,
            "latency_p95_ratio": 1.5,
            "acceptance_percent": 60,
            "engine_down": 0,
            "engine_silent_s": 0,
            "device_memory_percent": 40,
            "host_memory_percent": 50,
            "host_cpu_percent": 12,
            "gpu_temperature_c": 60,
            "disk_free_gib": 50,
        }
    )


# ---- the baseline ---------------------------------------------------------------------------------------------------


def test_p95_is_the_smallest_that_95_of_100_do_not_exceed() -> None:
    assert p95([]) is None
    assert p95(float(n) for n in range(1, 101)) == 95
    assert p95(float(n) for n in range(1, 21)) == 19


def test_the_baseline_is_the_median_of_the_hours() -> None:
    noise = random.Random(3)
    rows = []
    expected = []
    for hour in range(1, 25):
        times = [noise.expovariate(1 / hour) for _ in range(20)]
        expected.append(sorted(times)[18])  # the 19th of 20
        start = NOON - hour * HOUR_S
        rows += [RequestLatency("m", start + noise.uniform(0, HOUR_S - 1), e2e_s) for e2e_s in times]
    rows += [RequestLatency("m", NOON - 26 * HOUR_S, 1000.0) for _ in range(400)]  # older than a day
    rows += [RequestLatency("m", NOON + 60, 500.0) for _ in range(MIN_WINDOW_REQUESTS)]  # of now
    asked: list[float] = []

    def read(since: float, until: float) -> list[RequestLatency]:
        asked.append(since)
        return [row for row in rows if since <= row.finished_at < until]

    book = LatencyBook(read)
    found = book.read(NOON + 120)
    assert found.baseline == {"m": statistics.median(expected)}
    assert found.now == {"m": 500.0}
    assert len(asked) == 25
    book.read(NOON + 130)
    assert len(asked) == 26, "an hour that is over is read once"
    book.read(NOON + HOUR_S + 1)
    assert len(asked) == 28, "the hour that has ended since, and now"


def test_too_few_requests_have_neither_baseline_nor_p95() -> None:
    rows = [RequestLatency("m", NOON - 100, 1.0) for _ in range(MIN_BASELINE_REQUESTS - 1)]
    rows += [RequestLatency("m", NOON + 200, 9.0) for _ in range(MIN_WINDOW_REQUESTS - 1)]

    def read(since: float, until: float) -> list[RequestLatency]:
        return [row for row in rows if since <= row.finished_at < until]

    found = LatencyBook(read).read(NOON + 400)
    assert found.baseline == {"m": None}
    assert found.now == {"m": None}
    rows.append(RequestLatency("m", NOON - 100, 1.0))
    assert LatencyBook(read).read(NOON + 400).baseline == {"m": 1.0}
    assert baseline([]) is None
