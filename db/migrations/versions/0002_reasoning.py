"""Thoughts of an answer, apart from what it says.

Owns revision 0002. Additive: answers of before have none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("messages", sa.Column("reasoning_content", sa.Text(), nullable=False, server_default=""))
