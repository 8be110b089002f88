"""/api/alert-rules and /api/alerts: what the operator wants to be told, and what there was to tell."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from app.alert_metrics import METRICS
from app.alert_schemas import (
    Acknowledged,
    Alert,
    AlertList,
    AlertRule,
    AlertRuleBody,
    AlertRuleChanges,
    AlertRules,
    MetricView,
    Standing,
    WebhookTest,
)
from app.alerts import Alerts
from app.errors import ApiError
from app.services import Services, services
from db.alert_rows import AlertRuleRow

router = APIRouter(prefix="/api", tags=["alerts"])


@router.get("/alert-rules")
async def list_rules(parts: Services = Depends(services)) -> AlertRules:
    """All rules with how each stands now, and the metrics that a rule may look at."""
    rules = [_rule(parts.alerts, rule) for rule in parts.alerts.rules()]
    metrics = [MetricView(name=name, unit=m.unit, of=m.of, definition=m.definition) for name, m in METRICS.items()]
    return AlertRules(rules=rules, metrics=metrics)


@router.post("/alert-rules", status_code=201)
async def add_rule(body: AlertRuleBody, parts: Services = Depends(services)) -> AlertRule:
    """A new rule; it is judged from the next second on."""
    return _rule(parts.alerts, await parts.alerts.add_rule(body.model_dump()))


@router.patch("/alert-rules/{rule_id}")
async def change_rule(rule_id: str, body: AlertRuleChanges, parts: Services = Depends(services)) -> AlertRule:
    """Change a rule. Alerts that fire under what it said before are resolved."""
    changes = body.model_dump(exclude_unset=True, exclude={"version"})
    if not changes:
        raise ApiError(400, "nothing is to be changed", remedy=f"Give one of {', '.join(AlertRuleBody.model_fields)}")
    return _rule(parts.alerts, await parts.alerts.change_rule(rule_id, body.version, changes))


@router.delete("/alert-rules/{rule_id}", status_code=204)
async def delete_rule(
    rule_id: str, version: Annotated[int, Query(ge=1, lt=2**31)], parts: Services = Depends(services)
) -> Response:
    """Remove a rule. Its alerts stay in the history."""
    await parts.alerts.delete_rule(rule_id, version)
    return Response(status_code=204)


@router.post("/alert-rules/{rule_id}/test")
async def try_webhook(rule_id: str, parts: Services = Depends(services)) -> WebhookTest:
    """Send the rule's webhook one message that says it is a test, without retries, and say how that went."""
    return WebhookTest.model_validate(await parts.alerts.try_webhook(parts.alerts.rule(rule_id)))


@router.get("/alerts")
async def list_alerts(
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    state: Literal["firing", "resolved"] | None = None,
    parts: Services = Depends(services),
) -> AlertList:
    """Alerts, newest first. A rule that holds but not yet for long enough is pending: /api/alert-rules tells."""
    page = await asyncio.to_thread(parts.store.alerts.page, limit, before, state)
    rows = [Alert.model_validate(row) for row in page.rows]
    return AlertList(alerts=rows, next_before=page.next_before, **parts.alerts.counts())


@router.post("/alerts/acknowledge")
async def acknowledge_all(parts: Services = Depends(services)) -> Acknowledged:
    """The operator has seen all alerts there are. Returned: those that were not seen before."""
    rows = await parts.alerts.acknowledge(None)
    return Acknowledged(alerts=[Alert.model_validate(row) for row in rows])


@router.post("/alerts/{alert_id}/acknowledge")
async def acknowledge(alert_id: int, parts: Services = Depends(services)) -> Acknowledged:
    """The operator has seen this one. It goes on firing until its value comes back."""
    if not 0 <= alert_id < 2**63:
        raise ApiError(404, f"there is no alert {alert_id}", param="id")
    rows = await parts.alerts.acknowledge(alert_id)
    return Acknowledged(alerts=[Alert.model_validate(row) for row in rows])


def _rule(alerts: Alerts, rule: AlertRuleRow) -> AlertRule:
    now = [
        Standing(subject=subject, state=state, value=value, since=watch.since if watch is not None else None)
        for subject, (state, value, watch) in (alerts.standing(rule) if rule.enabled else {}).items()
    ]
    return AlertRule.model_validate(rule).model_copy(update={"now": now})
