"""What an alert rule may look at: the figures, their units and their definitions.

Owns the list of metrics and how a rule is checked. Knows nothing of where figures come from or of what a rule does.
Invariant: an unknown metric is refused with the list of the known ones; a value is None where it cannot be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Comparison = Literal["above", "below"]
Severity = Literal["info", "warning", "error"]
Values = dict[str, dict[str, float | None]]  # metric -> subject (a model, a GPU or "host") -> value now

WINDOW_S = 300.0  # of what is counted or ranked over time
MIN_WINDOW_REQUESTS = 20  # the fewest whose p95 is not simply the slowest
MIN_BASELINE_REQUESTS = 200
BASELINE_HOURS = 24
MIN_DRAFTED = 200


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. `of`: what a value belongs to."""

    unit: str  # "" for a plain number
    of: Literal["model", "machine"]
    definition: str


METRICS: dict[str, Metric] = {
    "requests_waiting": Metric("", "model", "Requests that wait for their first step in the engine"),
    "requests_running": Metric("", "model", "Requests that the engine computes now"),
    "tokens_per_s": Metric("1/s", "model", "Tokens the engine writes per second, over the last second"),
    "kv_used_percent": Metric("%", "model", "KV blocks held by running requests, of all blocks of the pool"),
    "ttft_p95_s": Metric("s", "model", "95th percentile of the time to first token, requests that ended in 5 minutes"),
    "latency_p95_s": Metric(
        "s",
        "model",
        f"95th percentile of the whole time of the requests that finished in the last 5 minutes, where there are at "
        f"least {MIN_WINDOW_REQUESTS}",
    ),
    "latency_p95_ratio": Metric(
        "x",
        "model",
        f"latency_p95_s over its baseline: the median of the p95 of each of the last {BASELINE_HOURS} full clock hours "
        f"that had requests, with at least {MIN_BASELINE_REQUESTS} requests in all",
    ),
    "acceptance_percent": Metric(
        "%",
        "model",
        f"Drafted tokens that were accepted, of all drafted in the last 5 minutes, where at least {MIN_DRAFTED} were",
    ),
    "engine_down": Metric("", "model", "1 where the engine ended by itself while it served, until it is loaded again"),
    "engine_silent_s": Metric("s", "model", "How long an engine that is ready has said nothing"),
    "device_memory_percent": Metric(
        "%", "machine", "Memory in use on each GPU; on a machine without one, of the memory that is not available"
    ),
    "host_memory_percent": Metric("%", "machine", "Memory of this machine that is not available"),
    "host_cpu_percent": Metric("%", "machine", "All cores together"),
    "gpu_temperature_c": Metric("°C", "machine", "As the driver tells it"),
    "disk_free_gib": Metric("GiB", "machine", "Free space where the data folder lies"),
}


def unknown_metric(name: str) -> str | None:
    """What is wrong with a metric's name; None for a known one."""
    if name in METRICS:
        return None
    return f"metric {name[:80]!r} is not known; known are {', '.join(METRICS)}"


def holds(comparison: str, value: float, threshold: float) -> bool:
    """Whether the value is beyond the threshold."""
    return value > threshold if comparison == "above" else value < threshold


def message(metric: str, subject: str, comparison: str, value: float, threshold: float) -> str:
    """An alert in a sentence, for logs and webhooks; the dashboard has its own words."""
    if metric == "engine_down":
        return f"the engine of {subject} is down"
    unit = METRICS[metric].unit if metric in METRICS else ""
    return f"{metric} of {subject} is {value:.4g}{unit}, {comparison} {threshold:.4g}{unit}"
