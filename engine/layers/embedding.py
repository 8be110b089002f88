"""The token table and the output head; a split cuts the vocabulary. A tied head is the table itself."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import Ops


class VocabParallelEmbedding:
    """table [V, H]: token ids to hidden states, and as `VocabParallelHead` the other way."""

    def __init__(self, ops: Ops, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.ops = ops
        self.weight = torch.empty(vocab_size, hidden_size, dtype=dtype, device=device)

    def load(self, tensor: Tensor) -> None:
        """Copies the table in."""
        self.weight.copy_(tensor)

    def forward(self, out: Tensor, token_ids: Tensor) -> None:
        self.ops.embedding(out, token_ids, self.weight)


class VocabParallelHead:
    """logits [S, V] = hidden [S, H] @ weight^T. `tied_to` shares the embedding's table."""

    def __init__(
        self,
        ops: Ops,
        vocab_size: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        tied_to: VocabParallelEmbedding | None,
    ) -> None:
        self.ops = ops
        self.weight = (
            tied_to.weight if tied_to is not None else torch.empty(vocab_size, hidden_size, dtype=dtype, device=device)
        )

    def load(self, tensor: Tensor) -> None:
        """Copies an untied head in."""
        self.weight.copy_(tensor)

    def forward(self, out: Tensor, hidden: Tensor) -> None:
        self.ops.linear(out, hidden, self.weight, None)
