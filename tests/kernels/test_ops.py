"""Every op of every backend: right against fp64, and each row independent of the rows beside it, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.ops import Ops
from kernels.registry import KERNELS, load_ops
from tests.kernels.op_cases import CASES, make_case

# Of the largest value.
TOLERANCE = {torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3, torch.float32: 3e-6, torch.float64: 1e-13}
DTYPES = {
    "reference": (torch.bfloat16, torch.float32, torch.float64),
    "cpu_ops": (torch.bfloat16, torch.float32),
    "triton_ops": (torch.float16, torch.float32),  # what its interpreter gets right
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked of a case: seeds for its values, and rows of which these parts are run by themselves."""

    seeds: int
    rows: int
    parts: tuple[tuple[int, int], ...]


EXTENTS = {
    "reference": Extent(3, 70, ((0, 1), (5, 6), (69, 70), (3, 8), (2, 18), (1, 66))),
    "cpu_ops": Extent(3, 70, ((0, 1), (5, 6), (69, 70), (3, 8), (2, 18), (1, 66))),
    "triton_ops": Extent(1, 18, ((0, 1), (5, 6), (17, 18), (3, 12))),  # interpreted: a hundred times slower
}
COMBINATIONS = [
    pytest.param(case, backend, dtype, id=f"{case}-{backend}-{str(dtype).removeprefix('torch.')}")
    for case in CASES
    for backend in KERNELS[case.partition(":")[0]]
    for dtype in DTYPES[backend]
]


def backend_ops(name: str, backend: str, dtype: torch.dtype) -> Ops:
    """All ops, of which the one of case `name` comes from `backend`: a fallback is a failure here."""
    ops, choices = load_ops([backend], dtype, torch.device("cpu"), num_threads=2)
    op = name.partition(":")[0]
    chosen = {choice.op: choice for choice in choices}
    assert chosen[op].backend == backend, chosen[op].reason
    return ops


def test_every_op_has_a_case() -> None:
    assert {case.partition(":")[0] for case in CASES} == KERNELS.keys()


@pytest.mark.parametrize(("name", "backend", "dtype"), COMBINATIONS)
def test_equals_fp64(name: str, backend: str, dtype: torch.dtype) -> None:
    ops = backend_ops(name, backend, dtype)
    for seed in range(EXTENTS[backend].seeds):
        case = make_case(name, dtype, seed)
        error = (case.run(ops, 0, case.rows).double() - case.truth).abs().max()
        assert float(error) <= TOLERANCE[dtype] * float(case.truth.abs().max())


@pytest.mark.parametrize(
    ("name", "backend", "dtype"),
    [case for case in COMBINATIONS if case.values[2] != torch.float64],  # fp64 proves values and promises no bits
)
def test_rows_are_independent(name: str, backend: str, dtype: torch.dtype) -> None:
    ops = backend_ops(name, backend, dtype)
    case = make_case(name, dtype, seed=11, rows=EXTENTS[backend].rows)
    together = case.run(ops, 0, case.rows)
    for first, last in EXTENTS[backend].parts:
        assert torch.equal(case.run(ops, first, last), together[first:last]), (first, last)


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel backend cuda_ops; known are cpu_ops, reference, triton_ops"):
        load_ops(["cuda_ops"], torch.float32, torch.device("cpu"), num_threads=1)
