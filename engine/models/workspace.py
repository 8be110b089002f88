"""The buffers of a step: allocated once for the largest step, cut to the rows of the present one.

Invariant: two steps of the same number of rows see the same addresses, so that a step can be recorded and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels.ops import accumulation_dtype


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch tensors; T rows each, but S rows for `picked` and `logits`."""

    residual: Tensor  # [T, H]
    normed: Tensor  # [T, H]
    hidden: Tensor  # [T, H]
    qkv: Tensor  # [T, (A + 2 C) * D]
    attended: Tensor  # [T, A * D]
    gate_up: Tensor  # [T, 2 I]
    inner: Tensor  # [T, I]
    picked: Tensor  # [S, H]
    logits: Tensor  # [S, V], fp32 (fp64 for a float64 model)

    @classmethod
    def allocate(
        cls, config: ModelConfig, rows: int, sample_rows: int, dtype: torch.dtype, device: torch.device
    ) -> Workspace:
        """Buffers for steps of up to `rows` rows, of which `sample_rows` yield logits."""

        def empty(count: int, width: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(count, width, dtype=dtype, device=device)

        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        return cls(
            residual=empty(rows, config.hidden_size),
            normed=empty(rows, config.hidden_size),
            hidden=empty(rows, config.hidden_size),
            qkv=empty(rows, queries + keys + keys),
            attended=empty(rows, queries),
            gate_up=empty(rows, config.intermediate_size + config.intermediate_size),
            inner=empty(rows, config.intermediate_size),
            picked=empty(sample_rows, config.hidden_size),
            logits=empty(sample_rows, config.vocab_size, accumulation_dtype(dtype)),
        )

    def cut(self, rows: int, sample_rows: int) -> Workspace:
        """Views of the first rows: of all buffers `rows`, of `picked` and `logits` `sample_rows`."""
        return Workspace(
            self.residual[:rows],
            self.normed[:rows],
            self.hidden[:rows],
            self.qkv[:rows],
            self.attended[:rows],
            self.gate_up[:rows],
            self.inner[:rows],
            self.picked[:sample_rows],
            self.logits[:sample_rows],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(getattr(self, name).nbytes for name in self.__slots__)
