"""Folders of conversations, texts that belong to a question, and presets.

Owns revision 0007. Additive: conversations of before are in no folder.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns and a table."""
    op.add_column("conversations", sa.Column("folder", sa.Text(), nullable=False, server_default=""))
    op.add_column("messages", sa.Column("attachments", sa.JSON(none_as_null=True)))
    op.create_table(
        "presets",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False, unique=True),
        sa.Column("system_prompt", sa.Text(), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
    )
