"""How large the database is.

Owns the count of rows. Knows nothing of what they mean.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from db.tables import metadata


def num_rows(connection: Connection) -> dict[str, int]:
    """Table -> how many rows it has."""
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in metadata.sorted_tables
    }
