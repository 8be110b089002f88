"""Medusa heads (arXiv 2401.10774): each predicts a token further on from one hidden state of the target.

Owns their weights and the order of their ops. From the state of position j, behind the target's final norm, head i
predicts the token at j + 2 + i. Invariant: no tensor arithmetic here, only `kernels.ops` on workspace buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.embedding import VocabParallelHead
from engine.layers.linear import ColumnParallelLinear, Weight
from kernels.ops import Ops, accumulation_dtype


@dataclass(frozen=True, slots=True)
class MedusaWorkspace:
    """Scratch of one pass; R rows each. The right half of `gated` is 1 and stays so."""

    state: Tensor  # [R, H]
    gated: Tensor  # [R, 2 H]
    hidden: Tensor  # [R, H]
    summed: Tensor  # [R, H]
    logits: Tensor  # [R, V of the heads], fp32 (fp64 for a float64 model)
    rows: Tensor  # int64 [R]: 0 to R - 1

    @classmethod
    def allocate(cls, config: ModelConfig, numbers: Tensor, dtype: torch.dtype) -> MedusaWorkspace:
        """Buffers for passes of up to as many rows as `numbers` has."""
        rows, device, hidden = len(numbers), numbers.device, config.hidden_size

        def empty(width: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(rows, width, dtype=dtype, device=device)

        gated = empty(2 * hidden)
        gated[:, hidden:].fill_(1)
        logits = empty(config.vocab_size, accumulation_dtype(dtype))
        return cls(empty(hidden), gated, empty(hidden), empty(hidden), logits, numbers)

    def cut(self, rows: int) -> MedusaWorkspace:
        """Views of the first rows."""
        return MedusaWorkspace(*(getattr(self, name)[:rows] for name in self.__slots__))

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(getattr(self, name).nbytes for name in self.__slots__)


class MedusaModel:
    """All heads."""

    def __init__(self, ops: Ops, config: ModelConfig, num_heads: int, dtype: torch.dtype, device: torch.device) -> None:
        hidden = config.hidden_size
        self.ops, self.config = ops, config
        self.blocks = [
            ColumnParallelLinear(ops, hidden, (hidden,), bias=True, dtype=dtype, device=device)
            for _ in range(num_heads)
        ]
        self.heads = [VocabParallelHead(ops, config, dtype, device, None) for _ in range(num_heads)]

    def forward(self, ws: MedusaWorkspace, head: int) -> None:
        """From ws.state to the logits of one head: head(x + silu(linear(x)))."""
        self.blocks[head].forward(ws.gated[:, : self.config.hidden_size], ws.state)
        self.ops.silu_mul(ws.hidden, ws.gated)
        self.ops.gather_rows(ws.summed, ws.state, ws.rows)
        self.ops.add(ws.summed, ws.hidden)
        self.heads[head].forward(ws.logits, ws.summed)

    def load(self, name: str, weight: Weight) -> None:
        """Takes a tensor by its public name. KeyError for one that the heads do not have."""
        match name.split("."):
            case ["medusa_head", index, "0", "linear", "weight"]:
                self.blocks[int(index)].load(weight)
            case ["medusa_head", index, "0", "linear", "bias"]:
                assert isinstance(weight, Tensor)
                self.blocks[int(index)].load_bias(weight)
            case ["medusa_head", index, "1", "weight"]:
                self.heads[int(index)].load(weight)
            case _:
                raise KeyError(name)

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded."""
        for block, head in zip(self.blocks, self.heads, strict=True):
            yield from block.weights()
            yield head.weight
