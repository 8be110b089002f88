"""Whether processes stop growing: what a soak holds their memory against.

Owns the samples of anonymous memory along the course of a run: heap, stacks, tensors, and no file's pages, which count
as this process's alone or not depending on its neighbours. Flat means: the straight line through the samples of the
run's second half rises by no more than MAX_GROWTH_BYTES over that half. The first half may grow, since there modules
load and pools fill; a line is no slave of one sample that came at a peak. A run of fewer than MIN_REQUESTS is all first
half: it is shown, not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import psutil

MAX_GROWTH_BYTES = 8 << 20  # of 2,000 requests, a leak of 8 KiB in each is found
MIN_REQUESTS = 1000
NUM_SAMPLES = 100
MIB = 1 << 20


class MemoryWatch:
    """Takes a sample at every hundredth of the run."""

    def __init__(self, pids: Mapping[str, int], num_requests: int) -> None:
        """pids: by the names that faults give them. num_requests: of the whole run."""
        self._is_judged = num_requests >= MIN_REQUESTS
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._samples: dict[str, list[tuple[float, int]]] = {name: [] for name in pids}
        self._due = 0.0

    def take(self, progress: float) -> None:
        """Samples when it is time. progress: the share of the run that is done."""
        if progress < self._due:
            return
        self._due = progress + 1 / NUM_SAMPLES
        for name, process in self._processes.items():
            memory = process.memory_info()
            self._samples[name].append((progress, memory.rss - memory.shared))  # as Linux counts: shared is mapped

    def growth_bytes(self, name: str) -> float:
        """By how much the line through the second half rises over that half."""
        progress, held = zip(*(sample for sample in self._samples[name] if sample[0] >= 0.5), strict=True)
        return statistics.linear_regression(progress, held).slope / 2

    def faults(self) -> list[str]:
        """Prints each process's course; those that still grew at the end are at fault."""
        faults = []
        for name, samples in self._samples.items():
            held = [each for _, each in samples]
            marks = [held[int(share * (len(held) - 1))] / MIB for share in (0, 0.25, 0.5, 0.75, 1)]
            growth = self.growth_bytes(name)
            course = ", ".join(f"{mark:.1f}" for mark in marks)
            print(f"{name}: {course} MiB at each quarter; second half {growth / MIB:+.2f} MiB by its trend")
            if self._is_judged and growth > MAX_GROWTH_BYTES:
                faults.append(f"{name}: grew by {growth:.0f} bytes in the second half, {MAX_GROWTH_BYTES} are allowed")
        return faults
