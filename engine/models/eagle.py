"""The one-layer drafter of EAGLE-3 (arXiv 2503.01840): hidden states of the target and the next token to that after it.

Owns its weights and the order of its ops; knows nothing of requests or files. The entry at position j takes the token
at j and the target's features of position j - 1, and predicts the token at j + 1. Invariant: no tensor arithmetic here,
only `kernels.ops` on workspace buffers; what is cached of an entry depends on the tokens up to j alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engine.layers.linear import ColumnParallelLinear, Weight
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RotaryTables
from engine.models.decoder_layer import DecoderLayer
from engine.models.workspace import Workspace
from kernels.ops import AttentionMetadata, KVCache, Ops, accumulation_dtype


class EagleLayer(DecoderLayer):
    """A decoder layer whose attention reads the token beside the hidden state."""

    norm_names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")

    def __init__(
        self, ops: Ops, config: ModelConfig, rotary: RotaryTables, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(ops, config, 0, rotary, dtype, device)
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        parts, both = (queries, keys, keys), config.hidden_size + config.hidden_size
        self.qkv = ColumnParallelLinear(ops, both, parts, bias=config.attention_bias, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class EagleWorkspace:
    """Scratch of one pass: T rows, of which S are drafted from. `rows` are the numbers 0 to T - 1."""

    layer: Workspace  # residual: the hidden state that goes in and the one that comes out
    features: Tensor  # [T, F * H of the target]
    both: Tensor  # [T, 2 H]
    rows: Tensor  # int64 [T]

    @classmethod
    def allocate(
        cls, config: ModelConfig, feature_size: int, numbers: Tensor, sample_rows: int, dtype: torch.dtype
    ) -> EagleWorkspace:
        """Buffers for passes of up to as many rows as `numbers` has, of which `sample_rows` are drafted from."""
        rows, device = len(numbers), numbers.device
        return cls(
            Workspace.allocate(config, rows, sample_rows, dtype, device),
            torch.zeros(rows, feature_size, dtype=dtype, device=device),
            torch.zeros(rows, 2 * config.hidden_size, dtype=dtype, device=device),
            numbers,
        )

    def cut(self, rows: int, sample_rows: int) -> EagleWorkspace:
        """Views of the first rows."""
        layer = self.layer.cut(rows, sample_rows)
        return EagleWorkspace(layer, self.features[:rows], self.both[:rows], self.rows[:rows])

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.layer.nbytes + self.features.nbytes + self.both.nbytes + self.rows.nbytes


class EagleModel:
    """Features and tokens to logits over the drafter's vocabulary."""

    def __init__(
        self,
        ops: Ops,
        config: ModelConfig,
        target_embedding: VocabParallelEmbedding | None,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        norm_before_residual: bool,
    ) -> None:
        """target_embedding: the target's token table; None: the drafter has its own. fc's size is that of its
        weight."""
        self.ops, self.config = ops, config
        self.norm_before_residual = norm_before_residual
        self.own_embedding = target_embedding is None
        self.embedding = target_embedding or VocabParallelEmbedding(ops, config, dtype, device)
        self.fc: ColumnParallelLinear | None = None
        self._place = dtype, device
        rotary = RotaryTables(config, max_positions, accumulation_dtype(dtype), device)
        self.layer = EagleLayer(ops, config, rotary, dtype, device)
        self.norm = RMSNorm(ops, config, config.hidden_size, dtype, device)
        self.head = VocabParallelHead(ops, config, dtype, device, None)

    def read(self, ws: EagleWorkspace, features: Tensor, feature_rows: Tensor) -> None:
        """The hidden states of the first pass: fc of the features in their rows, int64 [T]."""
        assert self.fc is not None
        self.ops.gather_rows(ws.features, features, feature_rows)
        self.fc.forward(ws.layer.residual, ws.features)

    def forward(
        self, ws: EagleWorkspace, token_ids: Tensor, cache: KVCache, metadata: AttentionMetadata, sample_rows: Tensor
    ) -> None:
        """From ws.layer.residual to the logits of `sample_rows`, int64 [S], and these rows' next hidden states, which
        lie in the first S rows of ws.layer.residual then."""
        layer, hidden = ws.layer, self.config.hidden_size
        self.embedding.forward(layer.normed, token_ids)
        self.layer.norms["input_layernorm"].forward(layer.hidden, layer.normed, None)
        self.ops.scatter_rows(ws.both, layer.hidden, ws.rows, 0)
        self.layer.norms["hidden_norm"].forward(layer.hidden, layer.residual, None)
        self.ops.scatter_rows(ws.both, layer.hidden, ws.rows, hidden)
        if self.norm_before_residual:
            self.ops.gather_rows(layer.residual, layer.hidden, ws.rows)
        self.layer.attend(layer, ws.both, cache, metadata)
        self.layer.norms["post_attention_layernorm"].forward(layer.normed, layer.residual, layer.hidden)
        self.layer.feed_forward(layer, layer.normed)
        self.ops.add(layer.residual, layer.hidden)
        self.ops.gather_rows(layer.picked, layer.residual, sample_rows)
        count = len(sample_rows)
        self.ops.gather_rows(layer.residual[:count], layer.picked, ws.rows[:count])
        self.norm.forward(layer.picked, layer.picked, None)
        self.head.forward(layer.logits, layer.picked)

    def load(self, name: str, weight: Weight) -> None:
        """Takes a tensor by its public name. KeyError for one that a drafter does not have."""
        dtype, device = self._place
        match name.split("."):
            case ["fc", "weight"]:
                outputs, inputs = weight.shape
                self.fc = ColumnParallelLinear(self.ops, inputs, (outputs,), bias=False, dtype=dtype, device=device)
                self.fc.load(weight)
            case ["midlayer", *rest]:
                self.layer.load(".".join(rest), weight)
            case ["norm", "weight"]:
                assert isinstance(weight, Tensor)
                self.norm.load(weight)
            case ["lm_head", "weight"]:
                self.head.load(weight)
            case ["embed_tokens", "weight"]:
                self.embedding.load(weight)
            case _:
                raise KeyError(name)

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded, the target's token table not among it."""
        assert self.fc is not None
        yield from self.fc.weights()
        yield from self.layer.weights()
        yield self.norm.weight
        yield self.head.weight
        if self.own_embedding:
            yield self.embedding.weight
