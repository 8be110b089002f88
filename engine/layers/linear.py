"""Linear layers: the owners of weight matrices, named by how a later split over devices would cut them.

Knows nothing of checkpoints beyond the shapes it was told. Invariant: a fused layer holds its parts side by side along
the output dimension, in the order of `part_sizes`, and `load_part` fills exactly one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.ops import Ops


class ColumnParallelLinear:
    """out = x @ weight^T + bias; a split cuts the outputs. Several parts may share the product (qkv, gate and up)."""

    def __init__(
        self, ops: Ops, in_size: int, part_sizes: Sequence[int], *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.ops = ops
        self.part_sizes = tuple(part_sizes)
        out_size = sum(part_sizes)
        self.weight = torch.empty(out_size, in_size, dtype=dtype, device=device)
        self.bias = torch.zeros(out_size, dtype=dtype, device=device) if bias else None

    def load_part(self, part: int, tensor: Tensor, *, bias: bool = False) -> None:
        """Copies one part's weight [part_size, in] or bias [part_size] into its place."""
        start = sum(self.part_sizes[:part])
        target = self.bias if bias else self.weight
        assert target is not None
        target[start : start + self.part_sizes[part]].copy_(tensor)

    def load(self, tensor: Tensor, *, bias: bool = False) -> None:
        """Copies all parts in at once, as a checkpoint may store them."""
        target = self.bias if bias else self.weight
        assert target is not None
        target.copy_(tensor)

    def forward(self, out: Tensor, x: Tensor) -> None:
        self.ops.linear(out, x, self.weight, self.bias)


class RowParallelLinear(ColumnParallelLinear):
    """The same product; a split cuts the inputs and sums the outputs."""

    def __init__(
        self, ops: Ops, in_size: int, out_size: int, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(ops, in_size, (out_size,), bias=bias, dtype=dtype, device=device)
