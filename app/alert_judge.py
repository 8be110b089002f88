"""From values to alerts: the state machine of the rules.

Owns when a rule that holds becomes an alert, and when an alert ends. Knows nothing of databases, webhooks or clocks.
Invariants: an alert begins only after its rule has held for `for_s` without a break, and ends only after the value has
stayed on the good side, by a margin, for CLEAR_S; a value at the threshold therefore does not make it flutter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from app.alert_metrics import Values, holds
from db.alert_rows import AlertRow, AlertRuleRow

CLEAR_S = 10.0
MARGIN = 0.02  # of the threshold
UNKNOWN_S = 300.0  # an alert whose value can no longer be known ends after that

Key = tuple[str, str]  # rule, subject


@dataclass(frozen=True, slots=True)
class Watch:
    """What a rule has seen of one subject. Without `alert_id` it is pending, or firing and being written down."""

    state: Literal["pending", "firing"]
    since: float
    value: float
    worst: float
    good_since: float | None = None
    unknown_since: float | None = None
    alert_id: int | None = None


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule has held long enough."""

    rule: AlertRuleRow
    subject: str
    watch: Watch


@dataclass(frozen=True, slots=True)
class Resolved:
    """An alert has ended: by its "value", because its subject is "gone" or "unknown", or by a change of the "rule"."""

    rule_id: str
    subject: str
    watch: Watch
    by: str


Change = Fired | Resolved


class AlertJudge:
    """Judges once a second. `watches` is what is pending or firing now."""

    def __init__(self, firing: Iterable[AlertRow] = ()) -> None:
        self.watches: dict[Key, Watch] = {
            (row.rule_id, row.subject): Watch("firing", row.fired_at, row.value, row.worst, alert_id=row.id)
            for row in firing
        }

    def judge(self, rules: Iterable[AlertRuleRow], values: Values, now: float) -> list[Change]:
        """Compare, and say what has begun and ended."""
        changes: list[Change] = []
        by_id = {rule.id: rule for rule in rules if rule.enabled}
        for key in list(self.watches):
            if key[0] not in by_id:
                changes += self._end(key, "rule")
        for rule in by_id.values():
            changes += self._judge(rule, values.get(rule.metric, {}), now)
        return changes

    def forget(self, rule_id: str) -> list[Change]:
        """The rule has been changed: what it said before is over."""
        return [change for key in list(self.watches) if key[0] == rule_id for change in self._end(key, "rule")]

    def written(self, key: Key, alert_id: int) -> bool:
        """The alert has its id now. False where it has ended meanwhile."""
        watch = self.watches.get(key)
        if watch is None or watch.state != "firing" or watch.alert_id is not None:
            return False
        self.watches[key] = replace(watch, alert_id=alert_id)
        return True

    def _judge(self, rule: AlertRuleRow, subjects: Mapping[str, float | None], now: float) -> list[Change]:
        changes: list[Change] = []
        for rule_id, subject in list(self.watches):
            if rule_id == rule.id and subject not in subjects:
                changes += self._end((rule_id, subject), "gone")
        for subject, value in subjects.items():
            key = (rule.id, subject)
            watch = self.watches.get(key)
            if watch is not None and watch.state == "firing":
                changes += self._firing(key, rule, watch, value, now)
            elif value is None or not holds(rule.comparison, value, rule.threshold):
                self.watches.pop(key, None)
            else:
                changes += self._pending(key, rule, watch, value, now)
        return changes

    def _pending(self, key: Key, rule: AlertRuleRow, watch: Watch | None, value: float, now: float) -> list[Change]:
        watch = watch or Watch("pending", now, value, value)
        watch = replace(watch, value=value, worst=_worse(rule, watch.worst, value))
        self.watches[key] = watch
        if now - watch.since < rule.for_s:
            return []
        self.watches[key] = replace(watch, state="firing")
        return [Fired(rule, key[1], watch)]

    def _firing(self, key: Key, rule: AlertRuleRow, watch: Watch, value: float | None, now: float) -> list[Change]:
        if value is None:
            unknown_since = watch.unknown_since or now
            self.watches[key] = replace(watch, unknown_since=unknown_since, good_since=None)
            return self._end(key, "unknown") if now - unknown_since >= UNKNOWN_S else []
        margin = abs(rule.threshold) * MARGIN
        edge = rule.threshold - margin if rule.comparison == "above" else rule.threshold + margin
        good_since = None if holds(rule.comparison, value, edge) else watch.good_since or now
        worst = _worse(rule, watch.worst, value)
        self.watches[key] = replace(watch, value=value, worst=worst, good_since=good_since, unknown_since=None)
        return self._end(key, "value") if good_since is not None and now - good_since >= CLEAR_S else []

    def _end(self, key: Key, by: str) -> list[Change]:
        watch = self.watches.pop(key)
        return [Resolved(*key, watch, by)] if watch.state == "firing" else []


def _worse(rule: AlertRuleRow, one: float, other: float) -> float:
    return max(one, other) if rule.comparison == "above" else min(one, other)
