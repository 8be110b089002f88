"""Opening the SQLite file: connections with our settings, and migrations up to the newest revision.

Owns how a connection is set up. Knows nothing of what is stored.
Invariant: a connection runs in WAL mode with foreign keys on; transactions start with our BEGIN, never the driver's.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event

from db.errors import StoreError
from db.histogram import MergeHistograms

BUSY_TIMEOUT_MS = 5000
MIGRATIONS = Path(__file__).parent / "migrations"


def open_engine(path: Path, *, writes: bool) -> Engine:
    """An SQLAlchemy engine over the file. A reading one refuses writes; a writing one takes the lock at BEGIN."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA foreign_keys = ON")
        if writes:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        else:
            connection.execute("PRAGMA query_only = ON")
        # SQLite's own lower() knows ASCII only; searching a chat has to find "Árbol" under "árbol".
        connection.create_function("lower", 1, _lower, deterministic=True)
        connection.create_aggregate("merge_histograms", 1, MergeHistograms)  # type: ignore[arg-type]

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _lower(text: str | None) -> str | None:
    return text if text is None else text.lower()


def migrate(engine: Engine, path: Path) -> None:
    """Bring the file to the newest revision; refuse one that a newer program has written."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    known = {revision.revision for revision in script.walk_revisions()}
    with engine.begin() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in known:
            raise StoreError(
                f"{path}: written by a newer Pizarra (database revision {current}, this program knows up to "
                f"{script.get_current_head()}); update the program, or set PIZARRA_HOME to another folder"
            )
        if current != script.get_current_head():
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
