"""The kernels' own threads: no slice is lost or run twice when jobs follow fast, whatever the thread count, and company
on the same cores slows a step no more than it must."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kernels.registry import load_ops
from tests.kernels.step_timer import TimedStep

JOBS = 1500
STEPS, ATTEMPTS = 100, 3
MOST_SLOWDOWN = 2.5
BUSY = [sys.executable, "-c", "print('begun', flush=True)\nwhile True: pass"]
ROOT = Path(__file__).resolve().parents[2]
CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_many_small_jobs_of_changing_size(num_threads: int) -> None:
    """A pool that mixes up two jobs hangs here or leaves a row unwritten (it once did)."""
    ops, _ = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads)
    gate_up = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.silu(gate_up[:, :16]) * gate_up[:, 16:]
    for job in range(JOBS):
        rows = 1 + job * 7 % 64
        out = torch.full((rows, 16), torch.nan)
        ops.silu_mul(out, gate_up[:rows])
        assert torch.allclose(out, expected[:rows], atol=1e-6), (job, rows)


def test_the_thread_count_does_not_change_a_bit() -> None:
    x, weight = (torch.randn(33, 200, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    results = []
    for num_threads in (1, 2, 4):
        ops, _ = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads)
        out = torch.empty(33, 33)
        ops.linear(out, x, weight, None)
        results.append(out)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@contextmanager
def neighbour(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun its work."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def slowdowns(timed: TimedStep, command: list[str], *, is_engine: bool) -> list[float]:
    """How many times as long a step takes beside the neighbour: ours, and its own where it is an engine too."""
    alone = timed.median_s(STEPS)
    with neighbour(command) as process:
        beside = [timed.median_s(STEPS)]
        if is_engine:
            beside.append(float(process.communicate()[0]))
    return [seconds / alone for seconds in beside]


@pytest.mark.skipif(CORES < 2, reason="one core for two processes halves each of them already")
@pytest.mark.parametrize("company", ["a busy process", "a second engine"])
def test_company_on_the_same_cores_slows_a_step_by_a_limited_factor(company: str) -> None:
    """Beside a process that keeps a core busy, and beside a second engine with as many threads, which is slowed alike.

    A test of times, because it is times that are promised: threads that spin or wait wrongly beside others take 6 to
    100 times as long, which no other test would notice. Medians of many steps, and the best of three attempts, since
    this machine may have other work.
    """
    threads, seen = min(CORES, 4), []
    timed, is_engine = TimedStep(threads), company == "a second engine"
    command = [sys.executable, "-m", "tests.kernels.step_timer", str(threads)] if is_engine else BUSY
    for _ in range(ATTEMPTS):
        seen.append(slowdowns(timed, command, is_engine=is_engine))
        if max(seen[-1]) <= MOST_SLOWDOWN:
            return
    pytest.fail(f"{company}: a step takes {seen} times as long, {MOST_SLOWDOWN} at most were promised")
