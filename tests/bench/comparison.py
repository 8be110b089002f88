"""A made-up comparison whose ratios are round."""

from __future__ import annotations

from bench.compare_results import DECODE, HTTP, OURS, PREFILL, Results, Task


def comparison() -> Results:
    """Bandwidth 20 GB/s over weights of 100 MB: a roof of 200 tokens a second."""
    results = Results(
        facts={
            "date": "2026-12-01 10:00",
            "command": "python -m bench.compare",
            "machine": "2 cores of a made-up CPU",
            "threads": 2,
            "rounds": 1,
            "quick": False,
            "march": None,
            "model": "model.gguf",
            "prompt_tokens": 32,
            "lengths": {"1": [8, 72], "16": [8, 40]},
        },
        engines={OURS: {"version": "this one", "settings": "steps", "weights_bytes": 100_000_000}},
        bandwidths=[20e9],
        verify={"0.0": [[1.0, 1.1, 1.0]], "1.0": [[1.0, 1.5, 1.2]]},
        contexts=[[0.004, 0.010, 1e8]],
        idle_shares={"vLLM": [0.01, 0.03]},
    )
    speeds = {
        Task(DECODE, 1): {OURS: 180, "OpenVINO": 80, "vLLM": 40},
        Task(DECODE, 16): {OURS: 3000, "OpenVINO": 450, "vLLM": 500},
        Task(PREFILL, 512): {OURS: 7500, "OpenVINO": 3000},
        Task(HTTP, 1): {OURS: 140, "vLLM": 35},
    }
    for task, engines in speeds.items():
        for name, speed in engines.items():
            results.add(task, name, speed, 1.0)
    results.failures = {Task(PREFILL, 512).key: {"vLLM": "prefill: its process was ended by SIGSEGV"}}
    return results
