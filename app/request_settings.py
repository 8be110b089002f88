"""What the operator settled about requests: whether their texts are kept, for how long they are, and which are slow.

Owns the names, defaults and ranges of these settings, which live among the others of /api/settings. Knows nothing of
how they are shown. Invariant: texts are kept only while `store_bodies` is true, and it is false until somebody says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.errors import ApiError
from db.rows import RequestRow

STORE_BODIES = "store_bodies"
RANGES = {  # name: the least, the most, what holds when it is not set
    "requests_retention_days": (1.0, 3650.0, 30.0),
    "slow_ttft_s": (0.01, 3600.0, 2.0),
    "slow_itl_s": (0.001, 3600.0, 0.25),
}


class RequestSettings:
    """The settings as they are now. Used from the event loop."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self.store_bodies = False
        self._numbers = {name: default for name, (_, _, default) in RANGES.items()}
        self.refresh()

    def refresh(self) -> None:
        """Read them anew: they were changed. What an earlier version may have let in and cannot be used is left out."""
        values = self._read()
        self.store_bodies = values.get(STORE_BODIES) is True
        for name, (_, _, default) in RANGES.items():
            value = values.get(name)
            self._numbers[name] = default if value is None or _fault(name, value) else float(value)

    @property
    def retention_s(self) -> float:
        """How long a request is kept."""
        return self._numbers["requests_retention_days"] * 86400

    @property
    def slow_ttft_s(self) -> float:
        return self._numbers["slow_ttft_s"]

    @property
    def slow_itl_s(self) -> float:
        return self._numbers["slow_itl_s"]

    def is_slow(self, row: RequestRow) -> bool:
        """Whether an ended request counts as slow: its first token, or the 95th percentile of the times between its
        tokens, came later than the operator's limits, or it lost its blocks on the way."""
        late = row.ttft_s is not None and row.ttft_s > self.slow_ttft_s
        halting = row.itl_p95_s is not None and row.itl_p95_s > self.slow_itl_s
        return late or halting or bool(row.num_preemptions)


def check_request_settings(values: Mapping[str, Any]) -> None:
    """Refuse what these settings cannot be; null sets one back. Raises ApiError."""
    for name, value in values.items():
        fault = None if value is None else _fault(name, value)
        if fault:
            raise ApiError(400, f"{name}={value!r}: {fault}", param=name, code="invalid_value")


def _fault(name: str, value: Any) -> str:
    if name == STORE_BODIES:
        return "" if isinstance(value, bool) else "must be true or false"
    if name not in RANGES:
        return ""
    low, high, _ = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    return "" if low <= value <= high else f"must lie between {low:g} and {high:g}"
