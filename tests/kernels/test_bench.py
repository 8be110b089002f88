"""The timing of ops against their roof: every op has work, work is counted right, and the table is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.bench import Line, Wish, measure, rate_text
from kernels.bench_shapes import SHAPES, Place
from kernels.bench_work import TIMED, works
from kernels.registry import KERNELS
from kernels.roofs import Roofs, copy_bandwidth, interleaved, last_cache_bytes, matrix_rate, read_bandwidth

CPU = torch.device("cpu")
TINY = Place(SHAPES["tiny"], torch.bfloat16, CPU)
ROOFS = Roofs(bandwidth=1e9, rate=1e12)


def test_every_op_is_timed_but_what_is_done_once_at_load() -> None:
    assert set(TIMED) == KERNELS.keys() - {"prepare_group_quant"}
    assert len(TIMED) == len(set(TIMED))


@pytest.mark.parametrize("rows", [1, 8, 130])
def test_every_op_runs_at_every_size(rows: int) -> None:
    faults: list[str] = []
    wish = Wish(["cpu_ops", "reference"], TIMED, [rows], [40], rounds=1, least_s=0)
    lines = list(measure(TINY, wish, ROOFS, faults.append))
    assert faults == []
    assert {(line.op, line.backend) for line in lines} >= {
        (op, backend) for op in ("linear", "paged_attention", "rms_norm") for backend in wish.backends
    }
    assert all(line.seconds > 0 and line.num_bytes > 0 and line.rows == rows for line in lines)
    if rows == 8:
        assert {line.op for line in lines} == set(TIMED)
        assert {line.shape for line in lines if line.op == "paged_attention"} == {
            "decode, 40 keys",
            "verify 8, 40 keys",
        }


def test_bytes_and_operations_of_a_product_and_of_attention() -> None:
    qkv = next(iter(works(TINY, ["linear"], 3, [])))
    outputs, inputs = (4 + 2 * 2) * 16, 64
    assert qkv.num_bytes == 2 * (outputs * inputs + 3 * (inputs + outputs))
    assert qkv.operations == 2 * 3 * outputs * inputs
    decode = next(iter(works(TINY, ["paged_attention"], 3, [40])))
    assert decode.num_bytes == 2 * (3 * 40 * 2 * 2 * 16 + 2 * 3 * 4 * 16)
    assert decode.operations == 4 * 3 * 40 * 4 * 16


def test_weights_of_a_line_exceed_a_cache_together() -> None:
    place = Place(SHAPES["135M"], torch.bfloat16, CPU)
    weight_bytes = 2 * 960 * 576
    assert place.copies(weight_bytes) * weight_bytes >= 2 * last_cache_bytes(CPU) >= 2 << 20
    assert place.copies(1 << 40) == 1
    assert TINY.copies(weight_bytes) == 1


def test_the_roof_is_the_longer_time() -> None:
    assert ROOFS.seconds(1e9, 1e9) == 1.0
    assert ROOFS.seconds(1e6, 1e12) == 1.0
    assert ROOFS.best(Roofs(2e9, 1e11)) == Roofs(2e9, 1e12)
    assert rate_text(123.4e9) == "123 GB/s"
    assert rate_text(2.5e12, 1e12, "TFLOP/s") == "2.5 TFLOP/s"
    line = Line("add", "3", 1, "cpu_ops", 2e-6, 1000, 0, ROOFS)
    assert line.markdown() == "| add | 3 | 1 | cpu_ops | 2.0 | 0.500 GB/s | 50% |"


def test_rates_are_measured() -> None:
    assert min(read_bandwidth(CPU, 1, 1 << 20), copy_bandwidth(CPU, 1, 1 << 20)) > 1e6
    assert matrix_rate(CPU, torch.float32, size=64, passes=1) > 1e6


def test_runs_take_turns() -> None:
    order: list[str] = []
    runs = [[lambda name=name: order.append(name)] for name in "ab"]
    assert len(interleaved(3, runs, CPU, least_s=0)) == 2
    assert order[-6:] == ["a", "b"] * 3


def test_a_backend_that_refuses_a_shape_is_told_of() -> None:
    """cpu_ops takes no fp16; the others' lines stay."""
    faults: list[str] = []
    wish = Wish(["cpu_ops", "reference"], ["silu_mul"], [1], [], rounds=1, least_s=0)
    lines = list(measure(Place(SHAPES["tiny"], torch.float16, CPU), wish, ROOFS, faults.append))
    assert [line.backend for line in lines] == ["reference"]
    assert len(faults) == 1
    assert faults[0].startswith("silu_mul, 96, 1 rows, cpu_ops: KeyError")


def test_the_command_prints_a_table() -> None:
    command = [sys.executable, "-m", "kernels.bench", "--model", "tiny", "--op", "add", "linear", "--rows", "1"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([*command, "--rounds", "1"], cwd=root, capture_output=True, text=True, check=True)
    assert "bandwidth" in done.stdout
    assert "| linear | gate_up 192 x 64 | 1 | reference |" in done.stdout
