"""Requests: why each ended, whether it was slow, its course in full, and, where the operator wants it, its texts.

Owns revision 0004. Additive: of what was recorded before, none of this is known.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, the indexes that the list's filters walk along, and the two tables."""
    op.add_column("requests", sa.Column("stop_cause", sa.Text()))
    op.add_column("requests", sa.Column("slow", sa.Integer()))
    op.create_index("ix_requests_state_seq", "requests", ["state", "seq"])
    op.create_index("ix_requests_source_seq", "requests", ["source", "seq"])
    op.create_index("ix_requests_slow", "requests", ["seq"], sqlite_where=sa.text("slow = 1"))
    op.create_table(
        "request_details",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("timeline", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_request_details_request_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_request_details"),
    )
    op.create_table(
        "request_bodies",
        sa.Column("seq", sa.Integer(), nullable=False, autoincrement=True),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("messages", sa.JSON()),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("answers", sa.JSON(), nullable=False),
        sa.Column("truncated", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_request_bodies_request_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_request_bodies"),
        sa.UniqueConstraint("request_id", name="uq_request_bodies_request_id"),
    )
