"""Alert rules with versions, alerts in pages, latencies behind a baseline, and retention as the operator wants it."""

from __future__ import annotations

import pytest

from db.alert_rows import AlertRow, AlertRuleRow, RequestLatency
from db.errors import NotFound, StaleSettings, StaleVersion
from db.retention import DAY_S, HOUR_S, RETENTION, seconds
from db.rows import DeviceSampleRow, RequestRow
from db.store import Store
from tests.db.clock import NOON, Clock


def alert(subject: str, **changes: object) -> AlertRow:
    values: dict[str, object] = {"state": "firing", "value": 1.0, "worst": 1.0, "pending_at": NOON, "fired_at": NOON}
    return AlertRow(0, "r", "engine_down", "above", 0.0, "error", subject, **(values | changes))  # type: ignore[arg-type]


def test_a_rule_is_kept_changed_and_removed_by_who_saw_it(store: Store) -> None:
    rule = AlertRuleRow("r", "host_cpu_percent", "above", 90.0, 5.0, "info", "http://x/", created_at=NOON)
    store.alerts.add_rule(rule).result()
    assert store.alerts.rules()[-1] == rule
    changed = store.alerts.change_rule("r", 1, {"threshold": 80.0}).result()
    assert (changed.threshold, changed.version, changed.webhook) == (80.0, 2, "http://x/")
    with pytest.raises(StaleVersion, match="alert rule r is at version 2"):
        store.alerts.change_rule("r", 1, {"threshold": 1.0}).result()
    with pytest.raises(StaleVersion):
        store.alerts.delete_rule("r", 1).result()
    store.alerts.delete_rule("r", 2).result()
    with pytest.raises(NotFound):
        store.alerts.change_rule("r", 2, {"threshold": 1.0}).result()


def test_a_first_rule_that_was_deleted_stays_away(store: Store, path: object, clock: Clock) -> None:
    assert len(store.alerts.rules()) == 6
    store.alerts.delete_rule("engine_down", 1).result()
    store.close()
    again = Store(store.path, clock)
    assert "engine_down" not in {rule.id for rule in again.alerts.rules()}
    again.close()


def test_alerts_come_in_pages_and_are_acknowledged(store: Store) -> None:
    rows = [store.alerts.add(alert(f"m{n}", muted=n == 0)).result() for n in range(5)]
    page = store.alerts.page(2)
    assert [row.subject for row in page.rows] == ["m4", "m3"]
    assert [row.subject for row in store.alerts.page(9, page.next_before).rows] == ["m2", "m1", "m0"]
    assert store.alerts.num_unacknowledged() == 4
    store.alerts.change(rows[4].id, {"state": "resolved", "resolved_at": NOON + 5, "resolved_by": "value"}).result()
    assert [row.subject for row in store.alerts.page(9, None, "resolved").rows] == ["m4"]
    assert {row.subject for row in store.alerts.firing()} == {"m0", "m1", "m2", "m3"}
    (seen,) = store.alerts.acknowledge(rows[1].id, NOON + 9).result()
    assert (seen.subject, seen.acknowledged_at) == ("m1", NOON + 9)
    assert store.alerts.acknowledge(rows[1].id, NOON + 10).result() == [], "it was seen before"
    assert len(store.alerts.acknowledge(None, NOON + 11).result()) == 4
    with pytest.raises(NotFound):
        store.alerts.acknowledge(999, NOON).result()


def test_latencies_are_those_of_requests_that_finished_well_in_the_window(store: Store) -> None:
    def save(name: str, finished_at: float, state: str = "finished", e2e_s: float | None = 2.0) -> None:
        row = RequestRow(name, "m", "chat", state, finished_at - 2, finished_at=finished_at, e2e_s=e2e_s)
        store.save_request(row).result()

    save("in", NOON + 5)
    save("early", NOON - 1)
    save("late", NOON + 10)
    save("failed", NOON + 5, "failed")
    save("unknown", NOON + 5, e2e_s=None)
    assert store.alerts.latencies(NOON, NOON + 10) == [RequestLatency("m", NOON + 5, 2.0)]


# ---- retention and settings -----------------------------------------------------------------------------------------


def test_retention_is_the_operators_within_bounds() -> None:
    assert seconds({}) == {name: kept.default * kept.unit_s for name, kept in RETENTION.items()}
    found = seconds({"retention_raw_hours": 100, "retention_10s_days": 2, "retention_1min_days": "x"})
    assert found["retention_raw_hours"] == 100 * HOUR_S
    assert found["retention_10s_days"] == 100 * HOUR_S, "a coarser step is kept no shorter than a finer one"
    assert found["retention_1min_days"] == 90 * DAY_S
    assert seconds({"retention_raw_hours": 10**9})["retention_raw_hours"] == 168 * HOUR_S


def test_upkeep_and_reading_follow_the_settings(store: Store, clock: Clock) -> None:
    for hour in (0, 30):
        store.add_samples(DeviceSampleRow(t=NOON + hour * HOUR_S, host_cpu_percent=50.0)).result()
    store.alerts.add(alert("m", state="resolved", resolved_at=NOON)).result()

    def upkeep(hours: float) -> None:
        clock.now = NOON + hours * HOUR_S
        for _ in range(10):  # each round does a bounded amount
            store.maintain().result()

    def seen(hour: int) -> float | None:
        return store.samples(NOON + hour * HOUR_S, NOON + hour * HOUR_S + 1, 1).columns["host_cpu_percent"][0]

    store.set_settings({"retention_raw_hours": 48, "retention_records_days": 1}).result()
    upkeep(31)
    assert store.num_rows()["device_samples"] == 2
    assert store.samples(NOON, NOON + 1, 1).step_s == 1, "still there to the second"
    assert seen(0) == 50.0
    assert store.alerts.page(9).rows == []
    store.set_settings({"retention_raw_hours": 12}).result()
    upkeep(31.1)
    assert store.num_rows()["device_samples"] == 1
    assert store.samples(NOON, NOON + 1, 1).step_s == 10
    assert seen(0) == 50.0, "the coarser step has it"


def test_a_setting_that_was_changed_elsewhere_is_not_overwritten(store: Store) -> None:
    store.set_settings({"a": 1, "b": 2}, {"a": None}).result()
    with pytest.raises(StaleSettings) as stale:
        store.set_settings({"a": 5, "b": 6}, {"a": None, "b": 2}).result()
    assert stale.value.names == ["a"]
    assert store.get_settings() == {"a": 1, "b": 2}
    store.set_settings({"a": 5}, {"a": 1}).result()
    assert store.get_settings() == {"a": 5, "b": 2}
