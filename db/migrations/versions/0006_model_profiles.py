"""Saved load options of each model, and what earlier loads of it were seen to take.

Owns revision 0006. Additive.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two tables."""
    op.create_table(
        "model_profiles",
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("model_id", "model_hash", "name", name="pk_model_profiles"),
    )
    op.create_table(
        "load_measurements",
        sa.Column("engine_run_id", sa.Text(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=False),
        sa.Column("t", sa.Float(), nullable=False),
        sa.Column("load_s", sa.Float(), nullable=False),
        sa.Column("estimated_bytes", sa.Integer(), nullable=False),
        sa.Column("measured_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("engine_run_id", name="pk_load_measurements"),
    )
    op.create_index("ix_load_measurements_model_id_t", "load_measurements", ["model_id", "t"])
