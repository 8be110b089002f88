"""The records of alerts as they enter and leave the database.

Owns their shape. Knows nothing of SQL or of how a rule is judged. Invariant: an alert carries what its rule said when
it fired, so that a rule that is changed or deleted changes no history.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlertRuleRow:
    """When to tell the operator. `version` grows with each change."""

    id: str
    metric: str
    comparison: str  # "above" | "below"
    threshold: float
    for_s: float  # how long it must hold
    severity: str  # "info" | "warning" | "error"
    webhook: str | None = None
    enabled: bool = True
    muted_until: float | None = None
    version: int = 1
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One time that a rule held long enough, for one model or one part of the machine (`subject`)."""

    id: int
    rule_id: str
    metric: str
    comparison: str
    threshold: float
    severity: str
    subject: str
    state: str  # "firing" | "resolved"
    value: float  # when it fired
    worst: float  # the value furthest beyond the threshold
    pending_at: float  # since when it held
    fired_at: float
    resolved_at: float | None = None
    resolved_by: str | None = None  # "value" | "gone" | "unknown" | "rule"
    acknowledged_at: float | None = None
    muted: bool = False


@dataclass(frozen=True, slots=True)
class AlertPage:
    """Newest first. `next_before` asks for the page after this one; None at the end."""

    rows: list[AlertRow]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """How long one finished request took."""

    model_id: str
    finished_at: float
    e2e_s: float
