"""Speculation: its times, its counts per position and its gain; what each run and request drafted with; self-tests.

Owns revision 0003. Additive: what was recorded before has no such figures, which is not the same as zero.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NUM_POSITIONS = 15
COUNTERS = (
    "draft_s_total",
    "verify_s_total",
    *(f"accepted_per_position_{position}_total" for position in range(NUM_POSITIONS)),
    *(f"drafted_per_position_{position}_total" for position in range(NUM_POSITIONS)),
)
GAUGE = "speculation_gain"


def upgrade() -> None:
    """Add the columns and the table."""
    for name in (GAUGE, *COUNTERS):
        op.add_column("engine_samples", sa.Column(name, sa.Float()))
    for part in ("min", "max", "sum"):
        op.add_column("engine_rollups", sa.Column(f"{GAUGE}_{part}", sa.Float()))
    op.add_column("engine_rollups", sa.Column(f"{GAUGE}_count", sa.Integer(), nullable=False, server_default="0"))
    for name in COUNTERS:
        for part in ("first", "last"):
            op.add_column("engine_rollups", sa.Column(f"{name}_{part}", sa.Float()))
    for name in ("model_hash", "drafter_hash", "speculation"):
        op.add_column("engine_runs", sa.Column(name, sa.Text()))
    for name in ("accepted_per_position", "drafted_per_position"):
        op.add_column("requests", sa.Column(name, sa.JSON()))
    for name in ("draft_s", "verify_s"):
        op.add_column("requests", sa.Column(name, sa.Float()))
    op.add_column("requests", sa.Column("proposer", sa.Text()))
    _selftests()


def _selftests() -> None:
    texts = ("id", "model_id", "engine_run_id", "model_hash", "drafter_hash", "proposer", "state")
    op.create_table(
        "selftests",
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_selftests"),
    )
    op.create_index("ix_selftests_model_id_finished_at", "selftests", ["model_id", "finished_at"])
