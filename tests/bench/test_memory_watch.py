"""What a soak holds memory against: it finds growth in the second half, and forgives it in the first."""

from __future__ import annotations

import mmap
import os

import pytest

from bench.memory_watch import MAX_GROWTH_BYTES, MIN_REQUESTS, NUM_SAMPLES, MemoryWatch

PAGE = 4096


def watched(grows_until: float, num_requests: int = MIN_REQUESTS) -> list[str]:
    """The faults of a run in which this process grows by twice what is allowed, evenly up to a share of the run."""
    watch, held = MemoryWatch({"self": os.getpid()}, num_requests), list[mmap.mmap]()
    for index in range(NUM_SAMPLES + 1):
        if index / NUM_SAMPLES <= grows_until:
            # Pages of its own: what the tests before have freed is resident already, and taking it again is no growth.
            size = int(4 * MAX_GROWTH_BYTES / NUM_SAMPLES / grows_until)
            block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for start in range(0, size, PAGE):  # memory counts once it is touched
                block[start] = 1
            held.append(block)
        watch.take(index / NUM_SAMPLES)
    return watch.faults()


def test_growth_to_the_end_is_a_fault() -> None:
    (fault,) = watched(1.0)
    assert fault.startswith("self: grew by")


def test_growth_in_the_first_half_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert watched(0.4) == []
    assert "MiB at each quarter" in capsys.readouterr().out


def test_a_short_run_is_not_judged() -> None:
    assert watched(1.0, num_requests=MIN_REQUESTS - 1) == []
