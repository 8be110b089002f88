"""Products with bf16 and fp32 weights in C++: a row has the same bits in any batch, whatever the shape."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import Ops
from kernels.registry import load_ops


@pytest.fixture(scope="module")
def ops() -> Ops:
    found, choices = load_ops(["cpu_ops"], torch.bfloat16, torch.device("cpu"), num_threads=2)
    chosen = {choice.op: choice for choice in choices}
    assert chosen["linear"].backend == "cpu_ops", chosen["linear"].reason
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_keep_a_rows_bits(ops: Ops, seed: int, dtype: torch.dtype) -> None:
    """Rows 1 to a prefill chunk, outputs and inputs that fill no tile, a result among the columns of a wider buffer."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    outputs, inputs = pick(3, 16, 17, 48, 100, 300), pick(8, 31, 32, 75, 576, 1030)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype) if seed % 2 else None
    x = torch.randn(520, inputs, generator=generator).to(dtype)
    whole = torch.empty(len(x), outputs + 2, dtype=dtype)[:, 1:-1]
    ops.linear(whole, x, weight, bias)
    logits = torch.empty(len(x), outputs)
    ops.linear(logits, x, weight, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 64, 65, 200):
        first = int(torch.randint(len(x) - rows, (), generator=generator))
        for out, expected in ((torch.empty(rows, outputs, dtype=dtype), whole), (torch.empty(rows, outputs), logits)):
            ops.linear(out, x[first : first + rows], weight, bias)
            assert torch.equal(out, expected[first : first + rows]), (rows, first)
