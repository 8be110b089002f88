"""The token table and the output head; a split cuts the vocabulary. A tied head is the table itself.

Owns what a family does to either: a scale of the embeddings, a scale and a soft cap of the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.linear import Weight, multiply, settle
from kernels.group_quant import GroupQuant
from kernels.ops import Ops, rounded


class VocabParallelEmbedding:
    """table [V, H]: token ids to hidden states, and as `VocabParallelHead` the other way."""

    weight: Weight

    def __init__(self, ops: Ops, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.ops, self.dtype, self.device = ops, dtype, device
        self.scale = rounded(config.embedding_scale, dtype)  # the checkpoints were trained with it in their dtype

    def load(self, weight: Weight) -> None:
        """Takes the table [V, H]."""
        self.weight = settle(self.ops, weight, self.dtype, self.device)

    def forward(self, out: Tensor, token_ids: Tensor) -> None:
        if isinstance(self.weight, GroupQuant):
            self.ops.group_embedding(out, token_ids, self.weight)
        else:
            self.ops.embedding(out, token_ids, self.weight)
        if self.scale != 1.0:
            self.ops.scale(out, self.scale)


class VocabParallelHead:
    """logits [S, V] = hidden [S, H] @ weight^T, then scaled and capped. `tied_to` shares the embedding's table."""

    def __init__(
        self,
        ops: Ops,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        tied_to: VocabParallelEmbedding | None,
    ) -> None:
        self.ops = ops
        self.scale, self.soft_cap = config.logits_scale, config.logits_soft_cap
        self.table = tied_to or VocabParallelEmbedding(ops, config, dtype, device)

    @property
    def weight(self) -> Weight:
        """[V, H]."""
        return self.table.weight

    def load(self, weight: Weight) -> None:
        """Takes an untied head."""
        self.table.load(weight)

    def forward(self, out: Tensor, hidden: Tensor) -> None:
        multiply(self.ops, out, hidden, self.weight, None)
        if self.scale != 1.0:
            self.ops.scale(out, self.scale)
        if self.soft_cap:
            self.ops.soft_cap(out, self.soft_cap)
