"""Linear layers: the owners of weight matrices, named by how a later split over devices would cut them.

A matrix is numbers of the model's dtype or stays in the codes that its checkpoint stores. Knows nothing of checkpoints
beyond the shapes it was told. Invariant: a fused layer's parts lie side by side along the output dimension, in the
order of `part_sizes`; parts that can be one matrix are one, others (of different formats, or orders of inputs) are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.group_quant import GroupQuant, stack_rows
from kernels.ops import Ops

Weight: TypeAlias = Tensor | GroupQuant


def multiply(ops: Ops, out: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
    """out = x @ weight^T + bias, whatever the weight is stored as. See `kernels.ops.Linear` and `GroupLinear`."""
    if isinstance(weight, GroupQuant):
        ops.group_linear(out, x, weight, bias)
    else:
        ops.linear(out, x, weight, bias)


def settle(ops: Ops, weight: Weight, dtype: torch.dtype, device: torch.device) -> Weight:
    """The weight as it will be used: on its device, numbers in `dtype`, codes as the kernels want them."""
    if isinstance(weight, GroupQuant):
        return ops.prepare_group_quant(weight.to(device))
    return weight.to(device=device, dtype=dtype)


class StackedWeight:
    """The parts of one matrix [sum of part_sizes, in_size], taken one at a time."""

    def __init__(
        self, ops: Ops, in_size: int, part_sizes: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.ops, self.dtype, self.device = ops, dtype, device
        self.part_sizes, self.in_size = tuple(part_sizes), in_size
        self.pieces: list[tuple[slice, Weight]] = []  # once all parts are there: columns of the output, and whose
        self._numbers: Tensor | None = None  # parts that are numbers, each in its place
        self._taken: dict[int, GroupQuant | None] = {}  # None: in _numbers

    def rows_of(self, part: int) -> slice:
        """Where a part lies among the outputs."""
        start = sum(self.part_sizes[:part])
        return slice(start, start + self.part_sizes[part])

    def load_part(self, part: int, weight: Weight) -> None:
        """Takes one part, [part_size, in_size]; with the last one the matrix is made."""
        if isinstance(weight, GroupQuant):
            self._taken[part] = weight
        else:
            if self._numbers is None:
                total = sum(self.part_sizes)
                self._numbers = torch.empty(total, self.in_size, dtype=self.dtype, device=self.device)
            self._numbers[self.rows_of(part)].copy_(weight)
            self._taken[part] = None
        if len(self._taken) == len(self.part_sizes):
            self._settle()

    def load(self, weight: Weight) -> None:
        """Takes all parts at once, as a checkpoint may store them."""
        self.pieces = [(slice(0, sum(self.part_sizes)), settle(self.ops, weight, self.dtype, self.device))]

    def _settle(self) -> None:
        numbers, parts = self._numbers, [self._taken[part] for part in range(len(self.part_sizes))]
        self._numbers, self._taken = None, {}
        if numbers is not None and not any(parts):
            self.pieces = [(slice(0, len(numbers)), numbers)]
            return
        alike: list[tuple[slice, list[GroupQuant]]] = []
        for part, weight in enumerate(parts):
            rows = self.rows_of(part)
            if weight is None:
                assert numbers is not None
                self.pieces.append((rows, numbers[rows].clone()))
            elif alike and alike[-1][0].stop == rows.start and alike[-1][1][0].like(weight):
                alike[-1][1].append(weight)
                alike[-1] = slice(alike[-1][0].start, rows.stop), alike[-1][1]
            else:
                alike.append((rows, [weight]))
        parts.clear()
        for rows, members in alike:
            stacked = stack_rows(members)
            members.clear()  # what is joined need not wait for the kernels' arrangement of it
            self.pieces.append((rows, settle(self.ops, stacked, self.dtype, self.device)))

    def multiply(self, out: Tensor, x: Tensor, bias: Tensor | None) -> None:
        """out [T, N] = x [T, in_size] @ matrix^T + bias [N]."""
        if len(self.pieces) == 1:
            multiply(self.ops, out, x, self.pieces[0][1], bias)
            return
        for columns, weight in self.pieces:
            multiply(self.ops, out[:, columns], x, weight, None if bias is None else bias[columns])

    def whole(self) -> Weight:
        """The one matrix of all parts. ValueError where their formats keep them apart."""
        if len(self.pieces) != 1:
            raise ValueError("these parts are stored in different formats, and cannot be one matrix")
        return self.pieces[0][1]

    def weights(self) -> Iterator[Weight]:
        """What was loaded."""
        return (weight for _, weight in self.pieces)


class ColumnParallelLinear:
    """out = x @ weight^T + bias; a split cuts the outputs. Several parts may share the product (qkv, gate and up)."""

    def __init__(
        self, ops: Ops, in_size: int, part_sizes: Sequence[int], *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = StackedWeight(ops, in_size, part_sizes, dtype, device)
        self.bias = torch.zeros(sum(part_sizes), dtype=dtype, device=device) if bias else None

    def load_part(self, part: int, weight: Weight) -> None:
        """Takes one part's weight [part_size, in]."""
        self.weight.load_part(part, weight)

    def load_bias(self, bias: Tensor, part: int | None = None) -> None:
        """Takes one part's bias [part_size], or that of all parts."""
        assert self.bias is not None
        (self.bias if part is None else self.bias[self.weight.rows_of(part)]).copy_(bias)

    def load(self, weight: Weight) -> None:
        """Takes the weight of all parts at once, as a checkpoint may store them."""
        self.weight.load(weight)

    def forward(self, out: Tensor, x: Tensor) -> None:
        self.weight.multiply(out, x, self.bias)

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded."""
        yield from self.weight.weights()
        if self.bias is not None:
            yield self.bias


class RowParallelLinear(ColumnParallelLinear):
    """The same product; a split cuts the inputs and sums the outputs."""

    def __init__(
        self, ops: Ops, in_size: int, out_size: int, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(ops, in_size, (out_size,), bias=bias, dtype=dtype, device=device)
