"""Which steps are recorded, and in which shapes.

Owns the shape of a step, the classes that steps on a GPU are padded to, and the choice of the recorder. Knows nothing
of how steps are recorded (`kernels.recording`).
Invariant: all that enters the arguments of a kernel beside addresses is in the shape; all else lies in buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.config import EffectiveSetting, LoadOptions
from kernels.ops import Ops
from kernels.recording import Eager, Recorder
from kernels.registry import KernelChoice

READS_HOST = ("rotary_kv_write", "paged_attention")  # where the reference's loop over requests would stay as captured
GRAPH_BACKEND = "triton_ops"


def aligned(rows: int, alignment: int) -> int:
    """`rows` rounded up to a multiple of `alignment`, at least one of it."""
    return max(1, -(-rows // alignment)) * alignment


class StepShape(NamedTuple):
    """The sizes of a step, padding included. longest: the most rows of one request; 0: any number of them."""

    rows: int
    sample_rows: int
    requests: int
    longest: int = 0


class StepShapes:
    """The shape that each step gets: the smallest class that holds it, or just its own size."""

    def __init__(self, alignment: int, classes: Sequence[StepShape] = ()) -> None:
        """classes: see `graph_classes`; none: every size is a shape of its own."""
        self.alignment = alignment
        self.classes = tuple(sorted(classes))

    def of(self, rows: int, sample_rows: int, requests: int, longest: int) -> StepShape:
        """The shape of a step of these sizes, before padding."""
        for shape in self.classes:
            if rows <= shape.rows and sample_rows <= shape.sample_rows:
                if requests <= shape.requests and longest <= shape.longest:
                    return shape
        return StepShape(aligned(rows, self.alignment), aligned(sample_rows, self.alignment), requests)


def graph_classes(
    max_requests: int, max_rows: int, max_sample_rows: int, alignment: int, rows_each: Sequence[int] = (1,)
) -> list[StepShape]:
    """Shapes of 1, 2, 4, ... and `max_requests` requests, for each number of rows that a request may have.

    rows_each: 1 for decode steps; for verification one more than there are drafts. Only what the buffers hold.
    """
    sizes = sorted({min(1 << power, max_requests) for power in range(max_requests.bit_length() + 1)})
    shapes = [
        StepShape(aligned(size * each, alignment), aligned(size * each, alignment), size, each)
        for each in rows_each
        for size in sizes
    ]
    return [shape for shape in shapes if shape.rows <= max_rows and shape.sample_rows <= max_sample_rows]


def rows_each(options: LoadOptions) -> tuple[int, ...]:
    """Rows of a request in the steps that are captured: of plain steps, of a whole draft, and of half a one."""
    if options.speculation == "off":
        return (1,)
    longest = options.num_speculative_tokens
    return tuple(sorted({1, 1 + -(-longest // 2), 1 + longest}))


def recorded(
    options: LoadOptions,
    ops: Ops,
    choices: Sequence[KernelChoice],
    device: torch.device,
    *,
    by_transformers: bool,
    mixture: bool = False,
) -> tuple[Recorder, Ops]:
    """The recorder of a load, and the ops to use with it. mixture: whether the model has experts to choose from."""
    if not options.recorded_steps:
        return Eager(), ops
    if by_transformers:
        return Eager("transformers computes the layers, and allocates as it goes"), ops
    backends = {choice.op: choice.backend for choice in choices}
    if device.type == "cuda":
        if mixture:
            return Eager("the choice of experts is read on the host, which no CUDA graph can hold"), ops
        fixed = [op for op in READS_HOST if backends[op] != GRAPH_BACKEND]
        if fixed:
            return Eager(f"{' and '.join(fixed)} by the reference cannot be captured in a CUDA graph"), ops
        from kernels.cuda_graphs import CudaCapturing, CudaGraphs

        return CudaGraphs(CudaCapturing(device)), ops
    if "cpu_ops" not in backends.values():
        return Eager("only the C++ kernels can be replayed on a CPU"), ops
    from kernels.cpu_ops.tape import Tape, telling

    return Tape(), telling(ops, [op for op, backend in backends.items() if backend != "cpu_ops"])


def recording_settings(recorder: Recorder) -> list[EffectiveSetting]:
    """What became of the wish for recorded steps. To be asked once a step of the model has run."""
    if not recorder.faults():
        return []
    reason = "; ".join(recorder.faults()) + ". Python takes part in every layer of such steps"
    return [EffectiveSetting("recorded_steps", "true", "false", reason)]
