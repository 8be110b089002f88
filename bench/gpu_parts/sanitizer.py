"""NVIDIA's compute-sanitizer on the kernels that compute addresses: does any read or write beside its buffers?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from bench.gpu_parts.task import LEFT_OUT, RIGHT, WRONG, Row, Task
from kernels.checks import CHECKS, run_check
from kernels.registry import KERNELS, backend_ops

TOOL = "compute-sanitizer"
ERROR_STATUS = 99
OPS = ("rotary_kv_write", "paged_attention", "group_linear", "linear")


def memcheck(task: Task) -> None:
    """One check of each of these ops under the tool, in fp16."""
    found = shutil.which(TOOL, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    if task.dry or found is None:
        task.add(
            Row(
                "memcheck",
                verdict=LEFT_OUT,
                note=f"there is no {TOOL} here" if found is None else "a dry run has no GPU",
            )
        )
        return
    root = Path(__file__).resolve().parents[2]
    command = [found, "--tool", "memcheck", "--error-exitcode", str(ERROR_STATUS)]
    command += [sys.executable, "-c", "from bench.gpu_parts.sanitizer import small_case; small_case()"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=max(1.0, task.seconds_left - 2), check=False
        )
    except subprocess.TimeoutExpired:
        task.add(Row("memcheck", verdict=LEFT_OUT, note="out of time"))
        return
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    if done.returncode not in (0, ERROR_STATUS):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        task.add(Row("memcheck", verdict=LEFT_OUT, note=f"{TOOL} ended with {done.returncode}: {''.join(last)[:200]}"))
        return
    verdict = RIGHT if done.returncode == 0 else WRONG
    task.add(Row(f"memcheck of {', '.join(OPS)}", verdict=verdict, note=" ".join(said[-1:])))


def small_case() -> None:
    """What runs under the tool."""
    device = torch.device("cuda:0")
    ops = backend_ops(["triton_ops"], torch.float16, device)
    reference = backend_ops([], torch.float64, torch.device("cpu"))
    for op in OPS:
        if "triton_ops" in KERNELS[op]:
            run_check(CHECKS[op][0], ops, reference, torch.float16, device)
