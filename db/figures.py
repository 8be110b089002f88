"""The figures that are sampled every second, by kind: the one list that tables, rollups and readings are made from.

Owns the names. Knows nothing of where a figure comes from or how it is stored.
Invariant: a gauge may go up and down; a counter never shrinks within one engine run, so its last value is its largest.
"""

from __future__ import annotations

from dataclasses import dataclass


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
RATES = {"prompt_tokens_per_s": "prompt_tokens_total", "generation_tokens_per_s": "generation_tokens_total"}

# Quantiles of the histograms, as columns of their own.
QUANTILES = {
    "ttft_p50_s": ("ttft_histogram", 0.5),
    "ttft_p95_s": ("ttft_histogram", 0.95),
    "itl_p50_s": ("itl_histogram", 0.5),
    "itl_p95_s": ("itl_histogram", 0.95),
}

SAMPLE_COLUMNS = (*ENGINE.gauges, *RATES, *ENGINE.counters, *QUANTILES, *DEVICE.gauges)
