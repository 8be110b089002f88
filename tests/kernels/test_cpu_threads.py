"""The kernels' own threads: no slice is lost or run twice when jobs follow fast, whatever the thread count."""

from __future__ import annotations

import pytest
import torch

from kernels.registry import load_ops

JOBS = 1500


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
