"""How fast this machine reads memory right now: what decoding is measured against."""

from __future__ import annotations

import time

import torch

BUFFERS, BUFFER_BYTES = 8, 64 << 20  # larger together than any cache


def read_bandwidth(device: torch.device, passes: int = 3) -> float:
    """Bytes a second, the best of `passes` sums over memory that no cache holds."""
    buffers = [torch.ones(BUFFER_BYTES // 4, device=device) for _ in range(BUFFERS)]
    best = 0.0
    for _ in range(passes):
        synchronize(device)
        start = time.perf_counter()
        for buffer in buffers:
            buffer.sum()
        synchronize(device)
        best = max(best, BUFFERS * BUFFER_BYTES / (time.perf_counter() - start))
    return best


def synchronize(device: torch.device) -> None:
    """Waits for a GPU's queue; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
