"""Recorded steps on a GPU: CUDA graphs, captured before the first request and replayed from then on.

Owns the graphs, their common memory pool and the stream they are captured on. Knows nothing of what a step computes.
Invariant: a graph reads and writes only buffers that outlive it; a capture that fails leaves its shape and all that
would come after it eager, and is told. `prepare` the largest shape first: the others find room in what it took.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from kernels.recording import Step

WARM_UPS = 2  # the first run compiles and tunes kernels, the second one has what later ones have


class Graph(Protocol):
    """What is used of `torch.cuda.CUDAGraph`."""

    def replay(self) -> None:
        """Runs what was captured."""


class Capturing(Protocol):
    """How graphs are made; a test has one for the CPU."""

    def warm_up(self, step: Step) -> None:
        """Runs the step as it is, to its end."""

    def capture(self, step: Step) -> Graph:
        """The graph of a step that has run before. RuntimeError where it cannot be captured."""


class CudaCapturing:
    """Captures on a stream of its own, as CUDA wants it, into one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def warm_up(self, step: Step) -> None:
        """Runs the step on the stream of the captures, which has handles and workspaces of its own."""
        with self._on_stream():
            step()
        torch.cuda.synchronize(self._device)

    def capture(self, step: Step) -> Graph:
        """See `Capturing`."""
        graph: Any = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                step()
        finally:  # where a capture has failed, torch's own exit raises before it puts the stream back
            torch.cuda.set_stream(before)
        self._pool = self._pool or graph.pool()
        return graph  # type: ignore[no-any-return]

    def _on_stream(self) -> AbstractContextManager[Any]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)


class CudaGraphs:
    """The recorder of a GPU; see `kernels.recording.Recorder`."""

    def __init__(self, capturing: Capturing) -> None:
        self._capturing = capturing
        self._graphs: dict[Hashable, Graph] = {}
        self._faults: list[str] = []
        self.num_replays = 0

    def run(self, shape: Hashable, step: Step) -> None:
        """Replays the shape's graph; a shape without one, such as a chunk of a prompt, is run as it is."""
        graph = self._graphs.get(shape)
        if graph is None:
            step()
        else:
            self.num_replays += 1
            graph.replay()

    def prepare(self, shape: Hashable, step: Step) -> None:
        """Warms the step up and captures it."""
        if self._faults:
            return
        try:
            for _ in range(WARM_UPS):
                self._capturing.warm_up(step)
            self._graphs[shape] = self._capturing.capture(step)
        except RuntimeError as error:
            self._faults.append(f"no CUDA graph of {shape}: {str(error).strip().splitlines()[0]}")

    def faults(self) -> Sequence[str]:
        """The capture that failed."""
        return tuple(self._faults)
