"""What steps of several sizes take on the loaded model: the start of the controller's cost curve.

Knows the runner's buffers and shapes, no requests. The steps are those that `InputBatch.idle` builds: real kernels on
real buffers, with rows that write nowhere. Invariant: to be run while no request is; caches keep their contents, and
the time that it takes is bounded, whatever the model: a large one is measured at fewer sizes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import torch

from engine.config import LoadOptions
from engine.core.speculation import most_sampled_rows
from engine.runner.model_runner import ModelRunner
from engine.runner.recorded_step import StepShape, aligned
from engine.spec.costs import StepSample

BUDGET_S = 0.2  # after which no further size is begun
ALWAYS = 2  # sizes that are measured however long they take: without a second one there is no curve
REPEATS = 2  # of each size, after one that may be recorded; the fastest counts: others had a neighbour


def measure(runner: ModelRunner, options: LoadOptions, budget_s: float = BUDGET_S) -> list[StepSample]:
    """Times plain steps and verifications; the most telling sizes come first. Without sampling.

    budget_s: seconds, on the whole. Steps of one request are short of context: their attention costs next to nothing.
    """
    start = time.perf_counter()
    samples: list[StepSample] = []
    for requests, each in _sizes(runner, options):
        if len(samples) >= ALWAYS and time.perf_counter() - start > budget_s:
            break
        samples.append(StepSample(requests * each, requests, _time(runner, requests, each)))
    return samples


def _sizes(runner: ModelRunner, options: LoadOptions) -> Sequence[tuple[int, int]]:
    """(requests, rows of each) of the steps to time that the buffers hold."""
    longest, most = 1 + options.num_speculative_tokens, options.max_num_seqs
    few = min(4, most)
    wishes = [(1, 1), (1, min(4, longest)), (1, longest), (most, 1), (1, 2), (1, 5), (few, 1), (few, 2)]
    wishes += [(most, 2), (1, 3), (few, 4), (1, 8), (1, 12)]
    rows = min(len(runner.workspace.normed), len(runner.workspace.logits), most_sampled_rows(options))
    return [size for size in dict.fromkeys(wishes) if size[0] * size[1] <= rows and size[1] <= longest]


@torch.inference_mode()
def _time(runner: ModelRunner, requests: int, each: int) -> float:
    """Seconds of a step in which each request has so many rows, all of them sampled."""
    batch, rows = runner.batch, requests * each
    shape = batch.shapes.of(rows, rows, requests, each)
    if shape.longest:  # a class: padding costs what it costs
        step = batch.idle(shape)
    else:
        alignment = batch.shapes.alignment
        step = batch.idle(StepShape(aligned(rows, alignment), aligned(rows, alignment), requests, each))
    workspace = runner.workspace.cut(shape.rows, shape.sample_rows)
    forward = functools.partial(runner.model.forward, workspace, step, runner.caches)
    best = float("inf")
    for _ in range(1 + REPEATS):
        _wait(runner.device)
        start = time.perf_counter()
        runner.recorder.run(shape, forward)
        _wait(runner.device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
