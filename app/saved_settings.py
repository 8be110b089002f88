"""The settings that are kept in the database and that the server itself reads.

Owns their names and ranges. Knows nothing of who reads them. Invariant: a value that a reader could not use is refused
before it is kept. Null sets a setting back. Names that are not listed belong to the dashboard, which may keep what it
likes.
"""

from __future__ import annotations

from db.retention import RETENTION

STORE_BODIES = "store_bodies"  # whether the text of requests and answers is kept; absent: no
SLOW = {  # seconds from which a request counts as slow: the least, the most, what holds when it is not set
    "slow_ttft_s": (0.01, 3600.0, 2.0),
    "slow_itl_s": (0.001, 3600.0, 0.25),
}


def setting_fault(name: str, value: object) -> str | None:
    """What is wrong with the value; None where it may be kept."""
    if value is None:
        return None
    if name == STORE_BODIES:
        return None if isinstance(value, bool) else "it must be true or false"
    if name in SLOW:
        low, high, _ = SLOW[name]
        good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"it must be a number from {low:g} to {high:g}"
    kept = RETENTION.get(name)
    if kept is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not kept.least <= value <= kept.most:
        return f"it must be a whole number from {kept.least} to {kept.most}"
    return None
