"""Alert rules, alerts, and the latencies that one kind of rule compares with.

Owns how these rows are kept and listed. Knows nothing of how a rule is judged. Invariant: a rule is changed only by who
has seen its present version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, delete, func, insert, select, update

from db.alert_rows import AlertPage, AlertRow, AlertRuleRow, RequestLatency
from db.errors import NotFound, StaleVersion
from db.tables import alert_rules, alerts, requests

T = TypeVar("T")

LONGEST_REQUEST_S = 3600.0  # a request that ended in a window began at most so long before it


class Read(Protocol):
    """Runs a query on a connection of its own."""

    def __call__(self, query: Callable[[Connection], T]) -> T: ...


class Write(Protocol):
    """Queues work for the writer's thread."""

    def __call__(self, work: Callable[[Connection], T]) -> Future[T]: ...


class AlertRecords:
    """The store's part for alerts."""

    def __init__(self, read: Read, write: Write) -> None:
        self._read = read
        self._write = write

    def rules(self) -> list[AlertRuleRow]:
        """All of them, those that came first at the head."""
        return self._read(_rules)

    def add_rule(self, row: AlertRuleRow) -> Future[None]:
        """A new rule."""
        return self._write(lambda c: _do(c, insert(alert_rules).values(**asdict(row))))

    def change_rule(self, rule_id: str, version: int, changes: Mapping[str, Any]) -> Future[AlertRuleRow]:
        """Change it and raise its version. NotFound; StaleVersion when `version` is not the present one."""
        return self._write(lambda c: _change_rule(c, rule_id, version, changes))

    def delete_rule(self, rule_id: str, version: int) -> Future[None]:
        """Remove it; its alerts stay. NotFound; StaleVersion."""

        def work(connection: Connection) -> None:
            _check_version(connection, rule_id, version)
            _do(connection, delete(alert_rules).where(alert_rules.c.id == rule_id))

        return self._write(work)

    def add(self, row: AlertRow) -> Future[AlertRow]:
        """A new alert; the `id` given is not used."""

        def work(connection: Connection) -> AlertRow:
            values = {name: value for name, value in asdict(row).items() if name != "id"}
            alert_id = connection.execute(insert(alerts).values(**values).returning(alerts.c.id)).scalar_one()
            return _one(connection, alert_id)

        return self._write(work)

    def change(self, alert_id: int, changes: Mapping[str, Any]) -> Future[AlertRow]:
        """Write how it went on. NotFound."""

        def work(connection: Connection) -> AlertRow:
            _do(connection, update(alerts).where(alerts.c.id == alert_id).values(**changes))
            return _one(connection, alert_id)

        return self._write(work)

    def acknowledge(self, alert_id: int | None, now: float) -> Future[list[AlertRow]]:
        """Note that the operator has seen it, or (None) all there are; the ones this changed. NotFound."""
        return self._write(lambda c: _acknowledge(c, alert_id, now))

    def page(self, limit: int = 100, before: int | None = None, state: str | None = None) -> AlertPage:
        """Newest first. `before`: the `next_before` of the page in front of it."""
        return self._read(lambda c: _list(c, limit, before, state))

    def firing(self) -> list[AlertRow]:
        """Those that have not been resolved."""
        return self._read(lambda c: [AlertRow(**found) for found in _mappings(c, alerts.c.state == "firing")])

    def num_unacknowledged(self) -> int:
        """How many the operator has not seen; muted ones do not count."""
        seen = [alerts.c.acknowledged_at.is_(None), alerts.c.muted.is_(False)]
        return self._read(lambda c: c.execute(select(func.count()).select_from(alerts).where(*seen)).scalar_one())

    def latencies(self, since: float, until: float) -> list[RequestLatency]:
        """Of the requests that finished well in [since, until)."""
        c = requests.c
        statement = select(c.model_id, c.finished_at, c.e2e_s).where(
            c.created_at >= since - LONGEST_REQUEST_S,  # the column with an index
            c.created_at < until,
            c.finished_at >= since,
            c.finished_at < until,
            c.state == "finished",
            c.e2e_s.is_not(None),
        )
        return self._read(lambda con: [RequestLatency(**found) for found in con.execute(statement).mappings()])


def _do(connection: Connection, statement: Any) -> None:
    connection.execute(statement)


def _rules(connection: Connection) -> list[AlertRuleRow]:
    statement = select(alert_rules).order_by(alert_rules.c.created_at, alert_rules.c.id)
    return [AlertRuleRow(**found) for found in connection.execute(statement).mappings()]


def _check_version(connection: Connection, rule_id: str, version: int) -> None:
    current = connection.execute(select(alert_rules.c.version).where(alert_rules.c.id == rule_id)).scalar_one_or_none()
    if current is None:
        raise NotFound(f"there is no alert rule {rule_id!r}")
    if current != version:
        raise StaleVersion(rule_id, version, current, what="alert rule")


def _change_rule(connection: Connection, rule_id: str, version: int, changes: Mapping[str, Any]) -> AlertRuleRow:
    _check_version(connection, rule_id, version)
    values = {**changes, "version": version + 1}
    _do(connection, update(alert_rules).where(alert_rules.c.id == rule_id).values(**values))
    found = connection.execute(select(alert_rules).where(alert_rules.c.id == rule_id)).mappings().one()
    return AlertRuleRow(**found)


def _mappings(connection: Connection, *where: Any) -> Any:
    return connection.execute(select(alerts).where(*where).order_by(alerts.c.id.desc())).mappings()


def _one(connection: Connection, alert_id: int) -> AlertRow:
    found = _mappings(connection, alerts.c.id == alert_id).one_or_none()
    if found is None:
        raise NotFound(f"there is no alert {alert_id}")
    return AlertRow(**found)


def _acknowledge(connection: Connection, alert_id: int | None, now: float) -> list[AlertRow]:
    if alert_id is not None:
        _one(connection, alert_id)
    where = [alerts.c.acknowledged_at.is_(None), *([] if alert_id is None else [alerts.c.id == alert_id])]
    statement = update(alerts).where(*where).values(acknowledged_at=now).returning(alerts)
    return [AlertRow(**found) for found in connection.execute(statement).mappings()]


def _list(connection: Connection, limit: int, before: int | None, state: str | None) -> AlertPage:
    where = [] if before is None else [alerts.c.id < before]
    if state is not None:
        where.append(alerts.c.state == state)
    found = connection.execute(select(alerts).where(*where).order_by(alerts.c.id.desc()).limit(limit + 1))
    rows = [AlertRow(**each) for each in found.mappings()]
    return AlertPage(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)
