"""Every Triton kernel compiles for a GPU, and its products use one instruction: what the interpreter cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.registry import KERNELS

ROOT = Path(__file__).parents[2]
SHARED_BYTES = 227 << 10  # a program's, on compute capability 9.0
INSTRUCTION = "HMMA.16816.F32.BF16"


@pytest.mark.timeout(300)  # the compiler's first run takes some 30 s of a core; later ones find its cache
def test_every_kernel_compiles_for_a_gpu_in_bfloat16() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.triton_compiler"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["op"] for one in told} == {op for op, backends in KERNELS.items() if "triton_ops" in backends}
    for one in told:
        assert one["shared"] <= SHARED_BYTES, one
        assert set(one["mma"]) <= {INSTRUCTION}, one
    for kernel in ("_linear", "_group_linear", "_attend"):
        assert any(one["kernel"] == kernel and one["mma"] == [INSTRUCTION] for one in told), kernel
