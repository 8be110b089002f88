"""How long requests take now, and how long they usually take.

Owns the arithmetic: the p95 of a window, the p95 of each hour, the median of those. Knows nothing of rules.
Invariant: a figure of too few requests is None. An hour that is over is read once.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.alert_metrics import BASELINE_HOURS, MIN_BASELINE_REQUESTS, MIN_WINDOW_REQUESTS, WINDOW_S
from app.request_figures import percentile
from db.alert_rows import RequestLatency

HOUR_S = 3600

ReadLatencies = Callable[[float, float], list[RequestLatency]]


def p95(values: Iterable[float]) -> float | None:
    """The smallest value that 95 % of all do not exceed; None of none."""
    return percentile(list(values), 0.95)


@dataclass(frozen=True, slots=True)
class Hour:
    """The finished requests of one model in one clock hour."""

    num_requests: int
    p95_s: float


def baseline(hours: Iterable[Hour]) -> float | None:
    """The median of the hours' p95; None where they had too few requests in all."""
    known = list(hours)
    if sum(hour.num_requests for hour in known) < MIN_BASELINE_REQUESTS:
        return None
    return statistics.median(hour.p95_s for hour in known)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of each model with finished requests: the p95 now and its baseline."""

    now: dict[str, float | None]
    baseline: dict[str, float | None]


class LatencyBook:
    """Reads the records; blocks while it does. Not for use by two threads at once."""

    def __init__(self, read: ReadLatencies) -> None:
        self._read = read
        self._hours: dict[int, dict[str, Hour]] = {}

    def read(self, now: float) -> Latencies:
        """Both figures as of now."""
        this_hour = int(now // HOUR_S)
        wanted = range(this_hour - BASELINE_HOURS, this_hour)
        self._hours = {hour: self._hours[hour] if hour in self._hours else self._hour(hour) for hour in wanted}
        by_model: dict[str, list[Hour]] = defaultdict(list)
        for models in self._hours.values():
            for model_id, hour in models.items():
                by_model[model_id].append(hour)
        window = _by_model(self._read(now - WINDOW_S, now))
        return Latencies(
            {name: p95(each) if len(each) >= MIN_WINDOW_REQUESTS else None for name, each in window.items()},
            {name: baseline(hours) for name, hours in by_model.items()},
        )

    def _hour(self, hour: int) -> dict[str, Hour]:
        found = _by_model(self._read(hour * HOUR_S, (hour + 1) * HOUR_S))
        return {name: Hour(len(each), p) for name, each in found.items() if (p := p95(each)) is not None}


def _by_model(latencies: Iterable[RequestLatency]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for latency in latencies:
        found[latency.model_id].append(latency.e2e_s)
    return found
