"""What can go wrong with the store, in words an operator can act on.

Owns the store's exceptions and the translation of SQLite's own. Knows nothing of tables.
Invariant: every exception that leaves `db` is a StoreError, and its message names the file or row and the remedy.
"""

from __future__ import annotations

from pathlib import Path

_REMEDIES = {
    "disk is full": "the disk is full; free some space, nothing already saved is lost",
    "readonly database": "the file is read-only; give this user write permission on it and its folder",
    "unable to open": "it cannot be opened; check that the folder exists and that this user may write to it",
    "disk i/o error": "the disk reports an I/O error; check the disk and copy the file to a safe place",
    "database is locked": "another process holds it; end that process",
    "not a database": "it is not an SQLite database; move it away and a new one is made",
    "malformed": "it is damaged; move it away (a new one is made) or restore a copy",
}


class StoreError(RuntimeError):
    """The database refused or could not do something."""


class NotFound(StoreError):
    """The named row does not exist."""


class NameTaken(StoreError):
    """Another row has this name."""


class StaleVersion(StoreError):
    """Somebody changed it (`what`: a conversation) since the caller read it. `current` is the version now."""

    def __init__(self, row_id: str, expected: int, current: int, what: str = "conversation") -> None:
        super().__init__(
            f"{what} {row_id} is at version {current}, the change was made on version {expected}; "
            "reload it and try again"
        )
        self.current = current
        self.what = what


class StaleSettings(StoreError):
    """Settings were changed since the caller read them; `names` are those that differ from what it saw."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"changed elsewhere since they were read: {', '.join(names)}")
        self.names = names


def explain(path: Path, error: Exception) -> StoreError:
    """The StoreError that says what `error`, raised while using the database at `path`, means."""
    if isinstance(error, StoreError):
        return error
    text = str(getattr(error, "orig", None) or error)
    for sign, remedy in _REMEDIES.items():
        if sign in text.lower():
            return StoreError(f"{path}: {remedy} (SQLite: {text})")
    return StoreError(f"{path}: {text}")
