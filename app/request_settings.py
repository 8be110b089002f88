"""What the operator settled about requests: whether their texts are kept, for how long they are, and which are slow.

Owns the settings as they are now. Knows nothing of how they are shown; names and ranges are app.saved_settings'.
Invariant: texts are kept only while `store_bodies` is true, and it is false until somebody says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.saved_settings import SLOW, STORE_BODIES, setting_fault
from db.retention import seconds
from db.rows import RequestRow


class RequestSettings:
    """Used from the event loop."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self.store_bodies = False
        self.retention_s = 0  # how long a request is kept
        self._slow: dict[str, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read them anew: they were changed. What an earlier version may have let in and cannot be used is left out."""
        values = self._read()
        self.store_bodies = values.get(STORE_BODIES) is True
        self.retention_s = seconds(values)["requests_retention_days"]
        for name, (_, _, default) in SLOW.items():
            value = values.get(name)
            self._slow[name] = default if value is None or setting_fault(name, value) else float(value)

    @property
    def slow_ttft_s(self) -> float:
        return self._slow["slow_ttft_s"]

    @property
    def slow_itl_s(self) -> float:
        return self._slow["slow_itl_s"]

    def is_slow(self, row: RequestRow) -> bool:
        """Whether an ended request counts as slow: its first token, or the 95th percentile of the times between its
        tokens, came later than the operator's limits, or it lost its blocks on the way."""
        late = row.ttft_s is not None and row.ttft_s > self.slow_ttft_s
        halting = row.itl_p95_s is not None and row.itl_p95_s > self.slow_itl_s
        return late or halting or bool(row.num_preemptions)
