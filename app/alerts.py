"""Alerts as a part of the server: rules judged once a second, and what follows from it.

Owns the loop, the rules in memory, the counts for the header, and the telling (records, topic `alerts`, events,
webhooks). Knows nothing of how a figure is read or a rule is judged. Invariants: the loop never waits for the disk or
another host; what is judged is what the records say, since the rules in memory change only after they were written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal

from app.alert_baseline import Latencies, LatencyBook
from app.alert_facts import AlertFacts
from app.alert_judge import AlertJudge, Change, Fired, Resolved, Watch
from app.alert_metrics import Values, message
from app.errors import ApiError
from app.events import EventLog
from app.live import LiveHub
from app.webhooks import Delivery, Webhooks
from db.alert_rows import AlertRow, AlertRuleRow
from db.store import Store

log = logging.getLogger(__name__)

PERIOD_S = 1.0
LATENCIES_PERIOD_S = 10.0
TOPIC = "alerts"

Standing = Literal["ok", "pending", "firing", "unknown"]


class Alerts:
    """The rules and their alerts. Used from the event loop."""

    def __init__(
        self,
        store: Store,
        hub: LiveHub,
        events: EventLog,
        facts: AlertFacts,
        webhooks: Webhooks,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records = store.alerts
        self._hub = hub
        self._events = events
        self._facts = facts
        self._webhooks = webhooks
        self._on_change = on_change
        self._clock = clock
        self._book = LatencyBook(store.alerts.latencies)
        self._latencies = Latencies({}, {})
        self._latencies_at = 0.0
        self._judge = AlertJudge(store.alerts.firing())
        self._rules = {rule.id: rule for rule in store.alerts.rules()}
        self._values: Values = {}
        self._unacknowledged = store.alerts.num_unacknowledged()
        self._telling: set[asyncio.Task[None]] = set()

    # ---- what there is ----------------------------------------------------------------------------------------------

    def rules(self) -> list[AlertRuleRow]:
        """All of them, those that came first at the head."""
        return list(self._rules.values())

    def rule(self, rule_id: str) -> AlertRuleRow:
        """One. Raises ApiError."""
        if rule_id not in self._rules:
            raise ApiError(404, f"there is no alert rule {rule_id[:80]!r}", param="id", remedy="/api/alert-rules")
        return self._rules[rule_id]

    def standing(self, rule: AlertRuleRow) -> dict[str, tuple[Standing, float | None, Watch | None]]:
        """Subject -> "ok", "pending", "firing" or "unknown", the value now, and what was seen of it."""
        found: dict[str, tuple[Standing, float | None, Watch | None]] = {}
        for subject, value in self._values.get(rule.metric, {}).items():
            watch = self._judge.watches.get((rule.id, subject))
            word: Standing = watch.state if watch is not None else "unknown" if value is None else "ok"
            found[subject] = (word, value, watch)
        return found

    def counts(self) -> dict[str, int]:
        """For the header."""
        muted = {rule.id for rule in self._rules.values() if self._muted(rule)}
        watches = self._judge.watches.items()
        firing = sum(watch.state == "firing" and key[0] not in muted for key, watch in watches)
        return {"firing": firing, "unacknowledged": self._unacknowledged}

    # ---- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Judge until the task is cancelled."""
        while True:
            try:
                await self.tick()
            except Exception:
                log.exception("the alert rules could not be judged this second")
            await asyncio.sleep(PERIOD_S)

    async def tick(self) -> None:
        """One second's judgement."""
        now = self._clock()
        if now - self._latencies_at >= LATENCIES_PERIOD_S:
            self._latencies_at = now
            self._latencies = await asyncio.to_thread(self._book.read, now)
        self._values = self._facts.read(now, self._latencies)
        for change in self._judge.judge(self._rules.values(), self._values, now):
            self._tell(change)

    async def shutdown(self) -> None:
        """Write down what is under way; deliveries are given up."""
        await asyncio.gather(*self._telling, return_exceptions=True)
        await self._webhooks.shutdown()

    # ---- what the operator does -------------------------------------------------------------------------------------

    async def add_rule(self, fields: Mapping[str, Any]) -> AlertRuleRow:
        """A new rule."""
        rule = AlertRuleRow(id=uuid.uuid4().hex[:12], created_at=self._clock(), **fields)
        await asyncio.wrap_future(self._records.add_rule(rule))
        self._rules[rule.id] = rule
        return rule

    async def change_rule(self, rule_id: str, version: int, changes: Mapping[str, Any]) -> AlertRuleRow:
        """Change some fields; alerts of what the rule said before end where it now says something else."""
        self.rule(rule_id)
        rule = await asyncio.wrap_future(self._records.change_rule(rule_id, version, changes))
        self._rules[rule_id] = rule
        if changes.keys() & {"metric", "comparison", "threshold", "for_s", "enabled"}:
            self._tell_all(self._judge.forget(rule_id))
        self._on_change()
        return rule

    async def delete_rule(self, rule_id: str, version: int) -> None:
        """Remove it; its open alerts end, its history stays."""
        self.rule(rule_id)
        await asyncio.wrap_future(self._records.delete_rule(rule_id, version))
        self._rules.pop(rule_id, None)
        self._tell_all(self._judge.forget(rule_id))

    async def acknowledge(self, alert_id: int | None) -> list[AlertRow]:
        """The operator has seen it, or (None) all there are."""
        rows = await asyncio.wrap_future(self._records.acknowledge(alert_id, self._clock()))
        for row in rows:
            self._hub.publish(TOPIC, dataclasses.asdict(row))
        await self._recount()
        return rows

    async def try_webhook(self, rule: AlertRuleRow) -> Delivery:
        """Send one message that says it is a test. Raises ApiError for a rule without a webhook."""
        if rule.webhook is None:
            raise ApiError(409, "this rule has no webhook", param="webhook", remedy="Give it one, and save it first")
        body = {"source": "pizarra", "state": "test", "message": "a test of this webhook: nothing is wrong"}
        return await self._webhooks.post(rule.webhook, {**body, "rule": _public(rule), "t": self._clock()})

    # ---- telling ----------------------------------------------------------------------------------------------------

    def _tell_all(self, changes: list[Change]) -> None:
        for change in changes:
            self._tell(change)

    def _tell(self, change: Change) -> None:
        work = self._fired(change) if isinstance(change, Fired) else self._resolved(change)
        task = asyncio.create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an alert could not be written down", exc_info=error)

    async def _fired(self, change: Fired) -> None:
        rule, watch = change.rule, change.watch
        muted = self._muted(rule)
        new = AlertRow(
            id=0,
            rule_id=rule.id,
            metric=rule.metric,
            comparison=rule.comparison,
            threshold=rule.threshold,
            severity=rule.severity,
            subject=change.subject,
            state="firing",
            value=watch.value,
            worst=watch.worst,
            pending_at=watch.since,
            fired_at=self._clock(),
            muted=muted,
        )
        row = await asyncio.wrap_future(self._records.add(new))
        if not self._judge.written((rule.id, change.subject), row.id):  # it ended while it was written
            row = await self._close(row, watch.worst, "value")
        await self._spread(row, rule)

    async def _resolved(self, change: Resolved) -> None:
        if change.watch.alert_id is None:
            return  # still being written: `_fired` closes it
        firing = await asyncio.to_thread(self._records.firing)
        row = next((row for row in firing if row.id == change.watch.alert_id), None)
        if row is not None:
            row = await self._close(row, change.watch.worst, change.by)
            await self._spread(row, self._rules.get(change.rule_id))

    async def _close(self, row: AlertRow, worst: float, by: str) -> AlertRow:
        changes = {"state": "resolved", "resolved_at": self._clock(), "resolved_by": by, "worst": worst}
        return await asyncio.wrap_future(self._records.change(row.id, changes))

    async def _spread(self, row: AlertRow, rule: AlertRuleRow | None) -> None:
        """Topic, event, webhook, header."""
        text = message(row.metric, row.subject, row.comparison, row.value, row.threshold)
        fired = row.state == "firing"
        self._hub.publish(TOPIC, dataclasses.asdict(row))
        self._events.add(
            "alert",
            row.severity if fired and not row.muted else "info",
            text if fired else f"resolved: {text}",
            data=dataclasses.asdict(row),
        )
        if rule is not None and rule.webhook is not None and not self._muted(rule):
            body = {"source": "pizarra", "state": row.state, "message": text, "alert": dataclasses.asdict(row)}
            self._webhooks.send(rule.webhook, {**body, "rule": _public(rule), "t": self._clock()})
        await self._recount()

    async def _recount(self) -> None:
        self._unacknowledged = await asyncio.to_thread(self._records.num_unacknowledged)
        self._on_change()

    def _muted(self, rule: AlertRuleRow) -> bool:
        return rule.muted_until is not None and rule.muted_until > self._clock()


def _public(rule: AlertRuleRow) -> dict[str, Any]:
    """A rule without the address that its message goes to."""
    return {name: value for name, value in dataclasses.asdict(rule).items() if name != "webhook"}
