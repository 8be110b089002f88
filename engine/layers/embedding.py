"""The token table and the output head; a split cuts the vocabulary. A tied head is the table itself.

Owns what a family does to either: a scale of the embeddings, a scale and a soft cap of the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels.ops import Ops, rounded


class VocabParallelEmbedding:
    """table [V, H]: token ids to hidden states, and as `VocabParallelHead` the other way."""

    def __init__(self, ops: Ops, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.ops = ops
        self.scale = rounded(config.embedding_scale, dtype)  # the checkpoints were trained with it in their dtype
        self.weight = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)

    def load(self, tensor: Tensor) -> None:
        """Copies the table in."""
        self.weight.copy_(tensor)

    def forward(self, out: Tensor, token_ids: Tensor) -> None:
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
        self.weight = (
            tied_to.weight
            if tied_to is not None
            else torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        )

    def load(self, tensor: Tensor) -> None:
        """Copies an untied head in."""
        self.weight.copy_(tensor)

    def forward(self, out: Tensor, hidden: Tensor) -> None:
        self.ops.linear(out, hidden, self.weight, None)
        if self.scale != 1.0:
            self.ops.scale(out, self.scale)
        if self.soft_cap:
            self.ops.soft_cap(out, self.soft_cap)
