"""Every Triton kernel against the reference in fp64, and a row alone against the row among others, in one dtype.

Runs the checks that a first load runs (`kernels.checks`), without their stamp; where the card has float8, as for a
load whose KV cache is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from bench.gpu_parts.task import LEFT_OUT, RIGHT, WRONG, Row, Task
from engine.config import FP8_CAPABILITY
from kernels.checks import CHECKS, Check, checks_of, run_check
from kernels.registry import KERNELS, backend_ops

BACKEND = "triton_ops"


def check(task: Task, name: str, part: str) -> None:
    """name: the dtype's. part: "1/3" is every third check, from the second on. Triton's interpreter has no bf16."""
    dtype: torch.dtype = getattr(torch, name)
    number, count = map(int, part.split("/"))
    ops = backend_ops([BACKEND], dtype, task.device)
    reference = backend_ops([], torch.float64, torch.device("cpu"))
    with torch.inference_mode():
        for op, one in itertools.islice(_checks(task), number, None, count):
            label = f"{op}{f' ({one.name})' if one.name else ''}, {name}"
            if BACKEND not in KERNELS[op]:
                task.add(Row(label, verdict=LEFT_OUT, note="the reference serves it"))
                continue
            found = run_check(one, ops, reference, dtype, task.device)
            figures = {"error": f"{found.error:.1e}", "allowed": f"{found.allowed:.1e}"}
            task.add(Row(label, figures, WRONG if found.fault else RIGHT, found.fault))


def _checks(task: Task) -> Iterator[tuple[str, Check]]:
    """In a dry run one of each op's."""
    float8 = task.device.type == "cuda" and torch.cuda.get_device_capability(task.device) >= FP8_CAPABILITY
    for op in CHECKS:
        checks = checks_of(op, float8=float8)
        for one in checks[:1] if task.dry else checks:
            yield op, one
