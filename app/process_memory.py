"""Memory that process trees hold for themselves (USS), at a price that a decoding engine does not feel.

Owns the readings from psutil and what each costs. Knows nothing of engines, of samples or of who asks. Invariant: what
is not a full reading of USS is told as "rss", or differs from the last full one by no more than the process's RSS does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

SHARE = 0.003  # of the time, spent in full readings of one process
FORGOTTEN_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class ProcessTreeMemory:
    """Memory of a process and all its descendants. `measure` is "uss", or "rss" where the system hides USS of one."""

    total_bytes: int
    measure: str
    pids: frozenset[int]


def process_tree_uss(pid: int) -> ProcessTreeMemory | None:
    """Bytes only this tree holds; None when the process has ended. RSS of a process counts where USS is forbidden."""
    return _tree(pid, _held_bytes)


def _tree(pid: int, held_bytes: Callable[[psutil.Process], tuple[int, str]]) -> ProcessTreeMemory | None:
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    held = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # ended since it was listed: it holds nothing
            held[process.pid] = held_bytes(process)
    if not held:
        return None
    measure = "rss" if any(measure == "rss" for _, measure in held.values()) else "uss"
    return ProcessTreeMemory(sum(each for each, _ in held.values()), measure, frozenset(held))


def _held_bytes(process: psutil.Process) -> tuple[int, str]:
    try:
        return int(process.memory_full_info().uss), "uss"
    except psutil.AccessDenied:
        return int(process.memory_info().rss), "rss"


@dataclass(slots=True)
class _Reading:
    uss: int
    rss: int
    next_at: float
    used_at: float


class MemoryMeter:
    """Reads the same trees again and again. Not for use by two threads at once.

    To tell a process's USS the system walks all its pages: some 5 ms for each GiB in pages of 4 KiB (2026-12-01), while
    the process must wait to map memory. So each process is walked for `SHARE` of the time at most; in between, its last
    USS goes up and down with its RSS, which the system counts as it goes: the same, unless pages begin or cease to be
    shared meanwhile.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_seconds: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._last: dict[psutil.Process, _Reading] = {}  # by pid and time of creation

    def process(self, pid: int) -> tuple[int, str]:
        """Bytes that this process alone holds, with their measure. Raises psutil.NoSuchProcess."""
        return self._held_bytes(psutil.Process(pid))

    def tree(self, pid: int) -> ProcessTreeMemory | None:
        """As `process_tree_uss`, but cheap."""
        self._forget()
        return _tree(pid, self._held_bytes)

    def _held_bytes(self, process: psutil.Process) -> tuple[int, str]:
        now, rss = self._clock(), int(process.memory_info().rss)
        last = self._last.get(process)
        if last is not None and now < last.next_at:
            last.used_at = now
            return max(0, last.uss + rss - last.rss), "uss"
        begun = self._cpu_seconds()
        held, measure = _held_bytes(process)
        if measure == "uss":
            cost = self._cpu_seconds() - begun
            self._last[process] = _Reading(held, rss, now + cost / SHARE, now)
        return held, measure

    def _forget(self) -> None:
        now = self._clock()
        for process in [each for each, last in self._last.items() if now - last.used_at > FORGOTTEN_AFTER_S]:
            del self._last[process]
