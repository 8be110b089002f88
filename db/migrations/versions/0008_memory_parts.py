"""Memory by part: what each engine states that it holds, and how much of its KV pool is in use, second by second.

Owns revision 0008. Additive: what was recorded before has no such figures, which is not the same as zero.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

GAUGES = (
    "weights_bytes",
    "draft_weights_bytes",
    "kv_bytes",
    "workspace_bytes",
    "runtime_bytes",
    "kv_used_bytes",
    "kv_cached_bytes",
)


def upgrade() -> None:
    """Add the columns."""
    for name in GAUGES:
        op.add_column("engine_samples", sa.Column(name, sa.Float()))
        for part in ("min", "max", "sum"):
            op.add_column("engine_rollups", sa.Column(f"{name}_{part}", sa.Float()))
        op.add_column("engine_rollups", sa.Column(f"{name}_count", sa.Integer(), nullable=False, server_default="0"))
