"""Runs migrations on the connection that `db.connect.migrate` hands over; there is no alembic.ini.

Owns Alembic's environment. Knows nothing of files: whoever opened the connection does.
Invariant: all revisions of one upgrade are one transaction, the caller's.
"""

from __future__ import annotations

from alembic import context

from db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
