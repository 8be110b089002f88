"""The figures that are sampled every second, by kind: the one list that tables, rollups and readings are made from.

Owns the names. Knows nothing of where a figure comes from or how it is stored.
Invariant: a gauge may go up and down; a counter never shrinks within one engine run, so its last value is its largest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NUM_POSITIONS = 15  # of a draft: as many as one may have (engine.config.MAX_DRAFTS, which nothing here imports)


def position_counters(name: str) -> tuple[str, ...]:
    """The counters of each place in a draft, the first one 0, as columns of their own: any window has its rates."""
    return tuple(f"{name}_{position}_total" for position in range(NUM_POSITIONS))


ACCEPTED_POSITIONS = position_counters("accepted_per_position")
DRAFTED_POSITIONS = position_counters("drafted_per_position")


# What an engine stated at load that it holds, by part. On a GPU all but the runtime lie there.
MEMORY_PARTS = ("weights_bytes", "draft_weights_bytes", "kv_bytes", "workspace_bytes", "runtime_bytes")


@dataclass(frozen=True, slots=True)
class Figures:
    """One kind of sample. `per_run`: keyed by the engine run it belongs to."""

    name: str
    per_run: bool
    gauges: tuple[str, ...]
    counters: tuple[str, ...] = ()
    histograms: tuple[str, ...] = ()


ENGINE = Figures(
    name="engine",
    per_run=True,
    gauges=(
        "num_requests_running",
        "num_requests_waiting",
        "kv_blocks_used",
        "kv_blocks_cached",
        "kv_blocks_total",
        "engine_process_bytes",
        "engine_gpu_bytes",
        "speculation_gain",
        *MEMORY_PARTS,
        "kv_used_bytes",
        "kv_cached_bytes",
    ),
    counters=(
        "prompt_tokens_total",
        "generation_tokens_total",
        "requests_finished_total",
        "preemptions_total",
        "steps_total",
        "step_s_total",
        "drafts_total",
        "drafted_total",
        "accepted_total",
        "draft_s_total",
        "verify_s_total",
        *ACCEPTED_POSITIONS,
        *DRAFTED_POSITIONS,
    ),
    histograms=("ttft_histogram", "itl_histogram"),
)

DEVICE = Figures(
    name="device",
    per_run=False,
    gauges=(
        "host_memory_total_bytes",
        "host_memory_used_bytes",
        "host_memory_available_bytes",
        "host_cpu_percent",
        "app_process_bytes",
        "disk_free_bytes",
        "gpu_memory_total_bytes",
        "gpu_memory_used_bytes",
        "gpu_utilization_percent",
        "gpu_temperature_c",
        "gpu_power_w",
    ),
)

KINDS = (ENGINE, DEVICE)

# Rates are derived when read: growth of the counter over the time between its two readings.
# Acceptance over any step is accepted_tokens_per_s / drafted_tokens_per_s, the mean length 1 + accepted / drafts.
RATES = {
    "prompt_tokens_per_s": "prompt_tokens_total",
    "generation_tokens_per_s": "generation_tokens_total",
    "drafts_per_s": "drafts_total",
    "drafted_tokens_per_s": "drafted_total",
    "accepted_tokens_per_s": "accepted_total",
    "requests_per_s": "requests_finished_total",
    "preemptions_per_s": "preemptions_total",
}

_AVERAGED = frozenset({"speculation_gain"})  # a ratio: of several engines the mean, of all else the sum

# Quantiles of the histograms, as columns of their own.
QUANTILES = {
    "ttft_p50_s": ("ttft_histogram", 0.5),
    "ttft_p95_s": ("ttft_histogram", 0.95),
    "ttft_p99_s": ("ttft_histogram", 0.99),
    "itl_p50_s": ("itl_histogram", 0.5),
    "itl_p95_s": ("itl_histogram", 0.95),
    "itl_p99_s": ("itl_histogram", 0.99),
}

SAMPLE_COLUMNS = (*ENGINE.gauges, *RATES, *ENGINE.counters, *QUANTILES, *DEVICE.gauges)


def of_several(name: str, values: Iterable[float | None]) -> float | None:
    """One figure of engines that run at the same time; None where none of them has it."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known) / len(known) if name in _AVERAGED else sum(known)
