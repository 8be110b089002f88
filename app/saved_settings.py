"""The settings that are kept in the database and that the server itself reads.

Owns their names and ranges. Knows nothing of who reads them. Invariant: a value that a reader could not use is refused
before it is kept. Names that are not listed belong to the dashboard, which may keep what it likes.
"""

from __future__ import annotations

from db.retention import RETENTION

STORE_BODIES = "store_bodies"  # whether the text of requests and answers is kept; absent: no


def setting_fault(name: str, value: object) -> str | None:
    """What is wrong with the value; None where it may be kept."""
    if name == STORE_BODIES:
        return None if isinstance(value, bool) else "it must be true or false"
    kept = RETENTION.get(name)
    if kept is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not kept.least <= value <= kept.most:
        return f"it must be a whole number from {kept.least} to {kept.most}"
    return None
