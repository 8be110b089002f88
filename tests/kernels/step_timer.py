"""A recorded step of the C++ kernels, run over and over: the time of one step as this process sees it.

`python -m tests.kernels.step_timer THREADS` is an engine that is busy beside another: it says when it has begun, runs
steps until its input ends, and then says how long one took in the middle.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time

import torch

from kernels.cpu_ops.tape import Tape
from kernels.registry import load_ops

LAYERS, ROWS, WIDTH = 20, 8, 512


class TimedStep:
    """Norms, products and activations of some small layers, some milliseconds in all."""

    def __init__(self, num_threads: int) -> None:
        ops, _ = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads)
        generator = torch.Generator().manual_seed(0)
        up, down = (torch.randn(shape, generator=generator) / 30 for shape in ((4 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH)))
        x, normed, hidden = (torch.randn(ROWS, WIDTH, generator=generator) for _ in range(3))
        wide, inner, weight = torch.empty(ROWS, 4 * WIDTH), torch.empty(ROWS, 2 * WIDTH), torch.ones(WIDTH)

        def step() -> None:
            for _ in range(LAYERS):
                ops.add_rms_norm(normed, x, hidden, weight, 1e-5)
                ops.linear(wide, normed, up, None)
                ops.silu_mul(inner, wide)
                ops.linear(hidden, inner, down, None)

        self._tape, self._step = Tape(), step
        self.run()

    def run(self) -> None:
        """One step."""
        self._tape.run("step", self._step)

    def median_s(self, steps: int) -> float:
        """Of so many steps, each by itself."""
        return statistics.median(self.time_s() for _ in range(steps))

    def time_s(self) -> float:
        """Of one step."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


def main() -> None:
    """See above."""
    timed = TimedStep(int(sys.argv[1]))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("begun", flush=True)
    times: list[float] = []
    while not ended.is_set():
        times.append(timed.time_s())
    print(statistics.median(times), flush=True)


if __name__ == "__main__":
    main()
