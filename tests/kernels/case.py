"""What a case of an op is, and what all cases are made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class Case:
    """run(ops, first, last) gives the op's output for rows first..last - 1 of the same data; truth is for all rows."""

    run: Callable[[Ops, int, int], Tensor]
    truth: Tensor
    rows: int


CaseMaker = Callable[[torch.Generator, torch.dtype, int], Case]


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    """Random numbers of the standard normal distribution."""
    return torch.randn(*shape, generator=generator).to(dtype)


def padded(ops: Ops, x: Tensor) -> Tensor:
    """Rows padded with zeros to what the op's backend wants."""
    missing = -x.shape[0] % ops.row_alignment
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
