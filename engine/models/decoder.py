"""The one decoder: layers of grouped-query attention and gated MLPs (Llama and its relatives).

Families differ by `ModelConfig` and by where a layer has its norms. Owns the embedding, the layers, the head and their
order; knows nothing of requests, of files, or of which kernels serve the ops. Invariant: no tensor arithmetic here,
only `kernels.ops` on workspace buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.core.kv_groups import kv_groups, layer_places
from engine.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engine.layers.linear import Weight
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RotaryTables
from engine.models.decoder_layer import LAYER_CLASSES
from engine.models.features import FeatureTap
from engine.models.workspace import Workspace
from kernels.ops import AttentionMetadata, KVCache, Ops, accumulation_dtype


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step computes. token_ids int64 [T]; sample_rows int64 [S]: the rows whose logits are wanted.

    attention: one for each KV group of the model; they differ in slot_mapping and block_tables.
    """

    token_ids: Tensor
    sample_rows: Tensor
    attention: tuple[AttentionMetadata, ...]


class Decoder:
    """Token ids to logits."""

    def __init__(
        self, ops: Ops, config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.ops = ops
        self.config = config
        rotary = RotaryTables(config, max_positions, accumulation_dtype(dtype), device)
        layer_class = LAYER_CLASSES[config.norm_placement]
        self.embedding = VocabParallelEmbedding(ops, config, dtype, device)
        self.layers = [
            layer_class(ops, config, index, rotary, dtype, device) for index in range(config.num_hidden_layers)
        ]
        self.group_of_layer = [group for group, _ in layer_places(kv_groups(config))]
        self.final_norm = RMSNorm(ops, config, config.hidden_size, dtype, device)
        tied = self.embedding if config.tie_word_embeddings else None
        self.head = VocabParallelHead(ops, config, dtype, device, tied)
        self.tap: FeatureTap | None = None  # set where a drafter reads this model's hidden states

    def forward(self, ws: Workspace, step: StepInputs, caches: Sequence[KVCache]) -> None:
        """Leaves the logits of `step.sample_rows` in ws.logits, and fills the caches."""
        self.embedding.forward(ws.residual, step.token_ids)
        delta: Tensor | None = None
        for index, (layer, cache, group) in enumerate(zip(self.layers, caches, self.group_of_layer, strict=True)):
            if self.tap is not None and index in self.tap.columns:
                if delta is not None:
                    self.ops.add(ws.residual, delta)  # the sum that the layer's norm would make, to the same bits
                    delta = None
                self._keep(self.tap, index, ws.residual, step)
            layer.forward(ws, delta, cache, step.attention[group])
            delta = ws.hidden
        self.final_norm.forward(ws.normed, ws.residual, delta)
        if self.tap is not None and len(self.layers) in self.tap.columns:
            self._keep(self.tap, len(self.layers), ws.normed, step)
        self.ops.gather_rows(ws.picked, ws.normed, step.sample_rows)
        self.head.forward(ws.logits, ws.picked)

    def _keep(self, tap: FeatureTap, index: int, states: Tensor, step: StepInputs) -> None:
        self.ops.scatter_rows(tap.features, states, step.attention[tap.group].slot_mapping, tap.columns[index])

    def load(self, name: str, weight: Weight) -> None:
        """Takes one checkpoint tensor by its Hugging Face name. KeyError for a name that this decoder does not have."""
        match name.split("."):
            case ["model", "embed_tokens", "weight"]:
                self.embedding.load(weight)
            case ["model", "norm", "weight"]:
                assert isinstance(weight, Tensor)
                self.final_norm.load(weight)
            case ["lm_head", "weight"]:
                if not self.config.tie_word_embeddings:  # a tied checkpoint may store its copy
                    self.head.load(weight)
            case ["model", "layers", index, *rest]:
                self.layers[int(index)].load(".".join(rest), weight)
            case _:
                raise KeyError(name)

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded; a tied head is the embedding and comes once."""
        yield self.embedding.weight
        for layer in self.layers:
            yield from layer.weights()
        yield self.final_norm.weight
        if not self.config.tie_word_embeddings:
            yield self.head.weight
