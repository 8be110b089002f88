"""Alerts: the operator's rules, with those that a new installation begins with, and what they found.

Owns revision 0005. Additive. The rules it writes are the operator's from then on: nothing brings back one that is
deleted.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

FIRST_RULES = (
    ("requests_waiting", "above", 100.0, 10.0, "warning"),
    ("latency_p95_ratio", "above", 2.0, 60.0, "warning"),
    ("device_memory_percent", "above", 98.0, 30.0, "warning"),
    ("acceptance_percent", "below", 30.0, 60.0, "warning"),
    ("engine_down", "above", 0.0, 0.0, "error"),
    ("disk_free_gib", "below", 2.0, 30.0, "error"),
)


def upgrade() -> None:
    """Add the tables and the first rules."""
    rules = op.create_table(
        "alert_rules",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("comparison", sa.Text(), nullable=False),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("for_s", sa.Float(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("webhook", sa.Text()),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("muted_until", sa.Float()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alert_rules"),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("rule_id", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("comparison", sa.Text(), nullable=False),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("worst", sa.Float(), nullable=False),
        sa.Column("pending_at", sa.Float(), nullable=False),
        sa.Column("fired_at", sa.Float(), nullable=False),
        sa.Column("resolved_at", sa.Float()),
        sa.Column("resolved_by", sa.Text()),
        sa.Column("acknowledged_at", sa.Float()),
        sa.Column("muted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index("ix_alerts_state", "alerts", ["state"])
    names = ("metric", "comparison", "threshold", "for_s", "severity")
    rest = {"webhook": None, "enabled": True, "muted_until": None, "version": 1, "created_at": 0.0}
    op.bulk_insert(
        rules,
        [{"id": rule[0], **dict(zip(names, rule, strict=True)), **rest} for rule in FIRST_RULES],
    )
