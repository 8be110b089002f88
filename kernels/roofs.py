"""How fast this machine moves and multiplies numbers right now: what kernels are measured against.

Owns the measured rates of memory and of matrix products, and how a call is timed. Knows no op. Invariant: a rate is
what torch itself reached in this run, so that a busy or a throttled machine does not look like a slow kernel.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

BUFFERS, BUFFER_BYTES = 8, 64 << 20  # larger together than any cache
LIKELY_CACHE = 128 << 20
CALLS_OF_A_GRAPH = 32  # so many that starting it counts for little
MATRIX_SIZES = {"cpu": 1024, "cuda": 8192}


@functools.cache
def last_cache_bytes(device: torch.device) -> int:
    """What the last cache holds, as the system tells it; LIKELY_CACHE where it does not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    known = [int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes if size[-1:] in ("K", "M")]
    return max(known, default=LIKELY_CACHE)


def read_bandwidth(device: torch.device, passes: int = 3, buffer_bytes: int = BUFFER_BYTES) -> float:
    """Bytes a second, the best of `passes` sums over memory that no cache holds."""
    buffers = [torch.ones(buffer_bytes // 4, device=device) for _ in range(BUFFERS)]
    best = 0.0
    for _ in range(passes):
        synchronize(device)
        start = time.perf_counter()
        for buffer in buffers:
            buffer.sum()
        synchronize(device)
        best = max(best, BUFFERS * buffer_bytes / (time.perf_counter() - start))
    return best


def read_peak(device: torch.device, passes: int = 4, buffer_bytes: int = BUFFER_BYTES) -> float:
    """As `read_bandwidth`, the best single buffer: some milliseconds in which no other process had the cores."""
    buffers = [torch.ones(buffer_bytes // 4, device=device) for _ in range(BUFFERS)]
    best = 0.0
    for buffer in buffers * passes:
        start = time.perf_counter()
        buffer.sum()
        best = max(best, buffer_bytes / (time.perf_counter() - start))
    return best


def copy_bandwidth(device: torch.device, passes: int = 5, buffer_bytes: int = BUFFER_BYTES) -> float:
    """Bytes read and written a second, the best of `passes` copies of memory that no cache holds."""
    size = BUFFERS * buffer_bytes // 4
    source, target = torch.ones(size, device=device), torch.zeros(size, device=device)
    best = 0.0
    for _ in range(passes):
        synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - start))
    return best


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = 0, passes: int = 10) -> float:
    """Operations a second, the best of `passes` of torch's own products of square matrices.

    size: of one; 0: as MATRIX_SIZES has it.
    """
    size = size or MATRIX_SIZES[device.type]
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out, best = torch.empty_like(one), 0.0
    for _ in range(passes):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(one, other, out=out)
        synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def synchronize(device: torch.device) -> None:
    """Waits for a GPU's queue; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Roofs:
    """bandwidth: bytes a second, read on a CPU, read and written in a copy on a GPU. rate: operations a second."""

    bandwidth: float
    rate: float

    @classmethod
    def measure(cls, device: torch.device, dtype: torch.dtype, *, small: bool = False) -> Roofs:
        """small: of little memory and small matrices, which says nothing but takes no time."""
        memory = copy_bandwidth if device.type == "cuda" else read_peak
        if small:
            return cls(memory(device, 1, 1 << 20), matrix_rate(device, dtype, 64, 1))
        return cls(memory(device), matrix_rate(device, dtype))

    def best(self, other: Roofs) -> Roofs:
        """The higher of both."""
        return Roofs(max(self.bandwidth, other.bandwidth), max(self.rate, other.rate))

    def seconds(self, num_bytes: float, operations: float) -> float:
        """The least that so much work takes: the larger of the two times."""
        return max(num_bytes / self.bandwidth, operations / self.rate)


Call = Callable[[], object]


def interleaved(rounds: int, runs: Sequence[Sequence[Call]], device: torch.device, least_s: float) -> list[float]:
    """Seconds of one call of each of `runs`: the median of `rounds`, in which they take turns (A B A B).

    A run is several calls that do the same on memory of their own, one after another, so that no cache holds it. A turn
    is whole passes over them, and lasts about `least_s`. On a GPU a pass is captured as a CUDA graph where it can be,
    and replayed: the time is the device's and not that of launching.
    """
    passes = [_pass(calls, device) for calls in runs]
    counts = [_count(run, least_s, device) for run, _ in passes]
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for (run, num_calls), count, found in zip(passes, counts, seconds, strict=True):
            found.append(_timed(run, count, device) / (count * num_calls))
    return [statistics.median(found) for found in seconds]


def _pass(calls: Sequence[Call], device: torch.device) -> tuple[Call, int]:
    """One pass over the calls, or a captured graph of several, warmed up; and how many calls it makes."""

    def plain() -> None:
        for call in calls:
            call()

    plain()
    if device.type != "cuda":
        return plain, len(calls)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(-(-CALLS_OF_A_GRAPH // len(calls))):
                plain()
        torch.cuda.synchronize(device)
    except RuntimeError:  # it waits for the device, as the reference does
        torch.cuda.synchronize(device)
        return plain, len(calls)
    return graph.replay, -(-CALLS_OF_A_GRAPH // len(calls)) * len(calls)


def _count(run: Call, least_s: float, device: torch.device) -> int:
    """How many passes make a turn."""
    once = max(_timed(run, 1, device), 1e-7)
    return max(1, min(10_000, round(least_s / once)))


def _timed(run: Call, count: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        run()
    synchronize(device)
    return time.perf_counter() - start
