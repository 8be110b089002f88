"""How fast a piece of work goes, and how long it has yet to go.

Owns the arithmetic over what a job says of its progress. Knows no job. Invariant: what was not seen is None: there is
no speed before a stage has moved, and no time left where neither the speed nor an earlier run tells it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW_S = 10.0  # that the speed is of
MIN_SPAN_S = 0.5  # before a speed means anything


class Pace:
    """Of one job. `expected_s`: how long all of it takes, where that is known."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._stage = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._left = 0
        self.expected_s: float | None = None

    def observe(self, stage: str, done: int, total: int) -> None:
        """Progress was told."""
        now = self._clock()
        if stage != self._stage:
            self._stage = stage
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] < now - WINDOW_S:
            self._seen.popleft()
        self._left = max(0, total - done)

    @property
    def rate_per_s(self) -> float | None:
        """Units a second of the present stage, over the last seconds."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if last_s - first_s < MIN_SPAN_S or last <= first:
            return None
        return (last - first) / (last_s - first_s)

    @property
    def eta_s(self) -> float | None:
        """Seconds to go: by earlier runs of the whole, else by the speed of the present stage."""
        if self.expected_s is not None:
            return max(0.0, self.expected_s - (self._clock() - self._started))
        rate = self.rate_per_s
        return None if rate is None else self._left / rate
