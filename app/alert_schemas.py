"""Bodies of /api/alert-rules and /api/alerts.

Owns field names, types and ranges. Knows nothing of what is done with them.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from app.alert_metrics import Comparison, Severity, unknown_metric
from app.schema_base import Incoming, Outgoing, Text
from app.webhooks import address_fault

WEEK_S = 7 * 86400


def _checked_metric(name: str) -> str:
    fault = unknown_metric(name)
    if fault is not None:
        raise ValueError(fault)
    return name


def _checked_webhook(url: str) -> str:
    fault = address_fault(url)
    if fault is not None:
        raise ValueError(fault)
    return url


Metric = Annotated[Text, AfterValidator(_checked_metric)]
Webhook = Annotated[Text, Field(max_length=2000), AfterValidator(_checked_webhook)]


class AlertRuleBody(Incoming):
    """A rule: an alert fires once `metric` has been beyond `threshold` for `for_s` without a break.

    webhook: an http or https address that this machine posts JSON to when an alert fires and when it is resolved.
    muted_until: until then alerts are recorded, but no webhook is called and the header does not count them.
    """

    metric: Metric
    comparison: Comparison
    threshold: float = Field(ge=-1e12, le=1e12)
    for_s: float = Field(default=0.0, ge=0, le=WEEK_S)
    severity: Severity = "warning"
    webhook: Webhook | None = None
    enabled: bool = True
    muted_until: float | None = Field(default=None, ge=0, le=1e11)


class AlertRuleChanges(Incoming):
    """What is to change; an absent field stays. version: of the rule as the caller saw it, else 409."""

    version: int = Field(ge=1, lt=2**31)
    metric: Metric = ""
    comparison: Comparison = "above"
    threshold: float = Field(default=0.0, ge=-1e12, le=1e12)
    for_s: float = Field(default=0.0, ge=0, le=WEEK_S)
    severity: Severity = "warning"
    webhook: Webhook | None = None
    enabled: bool = True
    muted_until: float | None = Field(default=None, ge=0, le=1e11)


class MetricView(Outgoing):
    """What a rule may look at. unit: of its value and threshold. of: what each value belongs to."""

    name: str
    unit: str
    of: Literal["model", "machine"]
    definition: str


class Standing(Outgoing):
    """A rule and one subject now. value: null where it cannot be known. since: when it became pending or fired."""

    subject: str
    state: Literal["ok", "pending", "firing", "unknown"]
    value: float | None
    since: float | None

    @field_validator("value")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None


class AlertRule(Outgoing):
    """A rule with how it stands now for each model or part of the machine."""

    id: str
    metric: str
    comparison: Comparison
    threshold: float
    for_s: float
    severity: Severity
    webhook: str | None
    enabled: bool
    muted_until: float | None
    version: int
    created_at: float
    now: list[Standing] = Field(default_factory=list)


class AlertRules(Outgoing):
    rules: list[AlertRule]
    metrics: list[MetricView]


class Alert(Outgoing):
    """One time that a rule held, with what the rule said then. value: when it fired. worst: furthest beyond.

    resolved_by: "value" came back, the subject is "gone", the value "unknown" for minutes, or the "rule" was changed.
    """

    id: int
    rule_id: str
    metric: str
    comparison: Comparison
    threshold: float
    severity: Severity
    subject: str
    state: Literal["firing", "resolved"]
    value: float
    worst: float
    pending_at: float
    fired_at: float
    resolved_at: float | None
    resolved_by: Literal["value", "gone", "unknown", "rule"] | None
    acknowledged_at: float | None
    muted: bool


class AlertList(Outgoing):
    """Newest first. next_before: the `before` of the next page, null at the end."""

    alerts: list[Alert]
    next_before: int | None
    firing: int
    unacknowledged: int


class Acknowledged(Outgoing):
    alerts: list[Alert]


class WebhookTest(Outgoing):
    """How a test message arrived. status: of the answer; error: why it was not delivered."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float
