"""Each kernel against the card's own copy bandwidth and matrix rate, beside torch's attention and matrix product."""

from __future__ import annotations

import dataclasses

import torch

from bench.gpu_parts.task import LEFT_OUT, WRONG, Row, Task, verdict
from kernels.bench import TORCH, Line, Wish, measure, rate_text
from kernels.bench_shapes import SHAPES, Place
from kernels.bench_work import TIMED
from kernels.registry import KERNELS
from kernels.roofs import Roofs

BACKEND = "triton_ops"
FIRST = ("paged_attention", "group_linear", "linear")  # what a step's time goes into
ATTENTION_TARGET, GEMV_TARGET = 0.70, 0.60
JUDGED_ROWS, JUDGED_KEYS = 16, "decode, 4096 keys"  # 8 heads of keys each: less work leaves a large card idle
ONE_LINE_S = 3.0  # most of it compilation


def measure_all(task: Task) -> None:
    """The shapes of an 8 B model in bf16; a dry run's in fp32."""
    dtype = torch.float32 if task.dry else torch.bfloat16
    place = Place(SHAPES["tiny" if task.dry else "8B"], dtype, task.device)
    roofs = Roofs.measure(task.device, dtype, small=task.dry)
    task.add(Row("copy bandwidth, read and written", {"rate": rate_text(roofs.bandwidth)}))
    label = f"torch's product of large matrices, {str(dtype).removeprefix('torch.')}"
    task.add(Row(label, {"rate": rate_text(roofs.rate, 1e12, "TFLOP/s")}))
    rows, contexts = ([1], [40]) if task.dry else ([1, 16, 64], [256, 4096])
    ops = [op for op in (*FIRST, *(op for op in TIMED if op not in FIRST)) if BACKEND in KERNELS[op]]
    wish = Wish([BACKEND, TORCH], ops, rows, contexts, rounds=1 if task.dry else 3, least_s=0 if task.dry else 0.004)
    with torch.inference_mode():
        for op in ops:
            if not task.fits(op, ONE_LINE_S):
                continue
            for line in measure(place, dataclasses.replace(wish, ops=[op]), roofs, lambda fault: _failed(task, fault)):
                task.add(_row(line, judged=not task.dry))
                if task.seconds_left < ONE_LINE_S:
                    task.add(Row(op, verdict=LEFT_OUT, note="the rest: out of time"))
                    break


def _failed(task: Task, fault: str) -> None:
    task.add(Row(fault.partition(": ")[0], verdict=WRONG, note=fault.partition(": ")[2]))


def _row(line: Line, *, judged: bool) -> Row:
    figures = {"us": f"{line.seconds * 1e6:.1f}", "rate": line.rate, "of the roof": f"{line.share:.0%}"}
    target = _target(line) if judged else 0.0
    name = f"{line.op}, {line.shape}, {line.rows} rows, {line.backend}"
    return Row(name, figures, verdict(line.share, target) if target else "")


def _target(line: Line) -> float:
    """What this line is judged by, 0: nothing."""
    if line.backend != BACKEND:
        return 0.0
    if line.op == "paged_attention" and line.shape == JUDGED_KEYS and line.rows == JUDGED_ROWS:
        return ATTENTION_TARGET
    if line.op == "group_linear" and line.rows == 1 and line.shape.startswith("gate_up"):
        return GEMV_TARGET
    return 0.0
