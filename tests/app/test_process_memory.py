"""Memory of processes: real ones, and a meter whose clock and costs are given."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from app import process_memory
from app.process_memory import FORGOTTEN_AFTER_S, SHARE, MemoryMeter, process_tree_uss

MIB = 1024 * 1024


def test_a_tree_counts_its_children() -> None:
    child = "import sys; data = bytearray(30 << 20); print('up', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = process_tree_uss(process.pid)
        assert tree is not None
        assert (tree.measure, len(tree.pids)) == ("uss", 2)
        assert 30 * MIB < tree.total_bytes < 300 * MIB
        process.communicate()
    assert process_tree_uss(process.pid) is None


def test_rss_counts_where_uss_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", forbidden)
    for tree in (process_tree_uss(os.getpid()), MemoryMeter().tree(os.getpid())):
        assert tree is not None
        assert tree.measure == "rss"
        assert tree.total_bytes > MIB


class Walks:
    """A meter of this process whose time is told; `uss` and `rss` are what the system says, a walk costs `cost`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.uss, self.rss, self.now, self.walked = 100, 150, 0.0, 0
        self._cost = cost
        monkeypatch.setattr(process_memory, "_held_bytes", self._walk)
        monkeypatch.setattr(psutil.Process, "memory_info", lambda _process: _Rss(self.rss))
        self.meter = MemoryMeter(clock=lambda: self.now, cpu_seconds=lambda: self._cost * self.walked)

    def read(self) -> int:
        tree = self.meter.tree(os.getpid())
        assert tree is not None
        return tree.total_bytes

    def _walk(self, _process: psutil.Process) -> tuple[int, str]:
        self.walked += 1
        return self.uss, "uss"


class _Rss:
    def __init__(self, rss: int) -> None:
        self.rss = rss


def test_a_meter_walks_pages_for_its_share_of_the_time_and_follows_rss_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walks = Walks(monkeypatch, cost=SHARE * 3)
    assert walks.read() == 100
    walks.now, walks.uss, walks.rss = 2.9, 130, 190
    assert walks.read() == 140  # ten of the new bytes are shared, which only a walk can tell
    walks.rss = 20
    assert walks.read() == 0
    assert walks.walked == 1
    walks.now = 3.01
    assert walks.read() == 130
    assert walks.walked == 2


def test_a_meter_forgets_processes_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = Walks(monkeypatch, cost=1e6)
    walks.read()
    walks.now = FORGOTTEN_AFTER_S - 1
    walks.read()
    walks.now += FORGOTTEN_AFTER_S
    walks.read()
    assert walks.walked == 1
    walks.now += FORGOTTEN_AFTER_S + 1
    walks.read()
    assert walks.walked == 2


def test_a_real_process_is_told_the_same_between_walks() -> None:
    child = "import sys\nfor _ in range(2): print('up', flush=True); sys.stdin.readline(); data = bytearray(64 << 20)"
    meter = MemoryMeter(cpu_seconds=iter((0.0, 1e6)).__next__)  # the first walk is the only one
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = meter.tree(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        after, walked = meter.tree(process.pid), process_tree_uss(process.pid)
        process.communicate()
    assert before is not None
    assert after is not None
    assert walked is not None
    assert after.total_bytes - before.total_bytes == pytest.approx(64 * MIB, abs=4 * MIB)
    assert after.total_bytes == pytest.approx(walked.total_bytes, abs=4 * MIB)
