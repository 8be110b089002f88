"""Where Triton kernels can run, what they refuse, and that they compile for a GPU that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.triton_ops import INTERPRETED
from kernels.triton_ops.elementwise import add
from kernels.triton_ops.embedding import gather_rows

ROOT = Path(__file__).resolve().parents[2]

# What the ops' first cases leave out: windows, caps, and both widths of code.
COMPILE = """
import contextlib, dataclasses, json
import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_capability = lambda device=None: (9, 0)
from kernels.registry import load_ops
from kernels.triton_ops.attention import paged_attention as attend
from kernels.triton_ops.rotary import rotary_kv_write as rotate
from tests.kernels.attention_cases import EVEN, Geometry, paged_attention, rotary_kv_write
from tests.kernels.triton_compiler import compiled_launches

reference, _ = load_ops([], torch.bfloat16, torch.device("cpu"), 1)
ops = dataclasses.replace(reference, row_alignment=1, rotary_kv_write=rotate, paged_attention=attend)
wide, float8 = Geometry(block_size=16, num_heads=8, num_kv_heads=2, head_dim=128), torch.float8_e4m3fn
makers = [rotary_kv_write(torch.int8), rotary_kv_write(float8), paged_attention(EVEN, window=70, soft_cap=5.0)]
makers += [paged_attention(wide, code_dtype=dtype) for dtype in (None, torch.int8, float8)]
with compiled_launches() as compiled:
    for make in makers:
        with contextlib.suppress(AssertionError):  # nothing was computed
            make(torch.Generator().manual_seed(0), torch.bfloat16, 3).run(ops, 0, 3)
names = [kernel.name for kernel in compiled]
instructions = [sorted(kernel.matrix_instructions()) for kernel in compiled if kernel.name == "_attend"]
print(json.dumps([names, max(kernel.shared_bytes for kernel in compiled), instructions]))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_tests_run_interpreted() -> None:
    assert INTERPRETED


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton can run here")
def test_without_a_gpu_the_reference_serves_and_says_why() -> None:
    done = python(
        "import torch; from kernels.registry import load_ops\n"
        "_, choices = load_ops(['triton_ops'], torch.float32, torch.device('cpu'), 1)\n"
        "print({(choice.backend, choice.reason) for choice in choices if choice.op == 'rms_norm'})"
    )
    assert "'reference', 'triton_ops: there is no CUDA device" in done.stdout, done.stderr


def test_numbers_that_come_out_wrong_are_refused() -> None:
    with pytest.raises(TypeError, match="silently wrong in bfloat16"):
        add(torch.zeros(1, 8, dtype=torch.bfloat16), torch.zeros(1, 8, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="float64 model needs the reference"):
        gather_rows(torch.zeros(1, 8).double(), torch.zeros(1, 8).double(), torch.zeros(1, dtype=torch.int64))


@pytest.mark.timeout(300)  # the compiler's first run takes half a minute of a core; later ones find its cache
def test_attention_and_rotary_compile_for_a_gpu_in_all_their_forms() -> None:
    done = python(COMPILE)
    assert done.returncode == 0, done.stderr[-3000:]
    names, shared, instructions = json.loads(done.stdout)
    assert {name: names.count(name) for name in names} == {"_rotary_kv_write": 2, "_attend": 4, "_finish": 2}
    assert shared <= 99 << 10, "more than a program has on a consumer's card"
    assert instructions == [["HMMA.16816.F32.BF16"]] * 4
