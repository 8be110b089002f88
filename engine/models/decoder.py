"""The one dense decoder: pre-norm layers of grouped-query attention and a gated MLP (Llama and its relatives).

Families differ by `ModelConfig`. Owns the weights and the order of the ops; knows nothing of requests, of files, or of
which kernels serve the ops. Invariant: no tensor arithmetic here, only `kernels.ops` on workspace buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.attention import LayerCache, PagedSelfAttention
from engine.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engine.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.layers.rotary import rotary_tables
from engine.models.workspace import Workspace
from kernels.ops import AttentionMetadata, Ops, accumulation_dtype


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step computes. token_ids int64 [T]; sample_rows int64 [S]: the rows whose logits are wanted."""

    token_ids: Tensor
    sample_rows: Tensor
    attention: AttentionMetadata


class DecoderLayer:
    """residual += attention(norm(residual)); residual += mlp(norm(residual)); the norm that follows takes the sum."""

    def __init__(
        self, ops: Ops, config: ModelConfig, cos: Tensor, sin: Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.input_norm = RMSNorm(ops, config.hidden_size, config.rms_norm_eps, dtype, device)
        self.qkv = ColumnParallelLinear(
            ops, config.hidden_size, (queries, keys, keys), bias=config.attention_bias, dtype=dtype, device=device
        )
        self.attention = PagedSelfAttention(ops, config.num_attention_heads, config.head_dim, cos, sin)
        self.output = RowParallelLinear(
            ops, queries, config.hidden_size, bias=config.attention_bias, dtype=dtype, device=device
        )
        self.post_attention_norm = RMSNorm(ops, config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = GatedMLP(ops, config, dtype, device)

    def forward(self, ws: Workspace, delta: Tensor | None, cache: LayerCache, metadata: AttentionMetadata) -> None:
        """delta: what the layer before has yet to add to the residual; this layer's own is left in ws.hidden."""
        self.input_norm.forward(ws.normed, ws.residual, delta)
        self.qkv.forward(ws.qkv, ws.normed)
        self.attention.forward(ws.attended, ws.qkv, cache, metadata)
        self.output.forward(ws.hidden, ws.attended)
        self.post_attention_norm.forward(ws.normed, ws.residual, ws.hidden)
        self.mlp.forward(ws.hidden, ws.normed, ws.gate_up, ws.inner)


class Decoder:
    """Token ids to logits."""

    def __init__(
        self, ops: Ops, config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.ops = ops
        self.config = config
        cos, sin = rotary_tables(config, max_positions, accumulation_dtype(dtype), device)
        self.embedding = VocabParallelEmbedding(ops, config.vocab_size, config.hidden_size, dtype, device)
        self.layers = [DecoderLayer(ops, config, cos, sin, dtype, device) for _ in range(config.num_hidden_layers)]
        self.final_norm = RMSNorm(ops, config.hidden_size, config.rms_norm_eps, dtype, device)
        tied = self.embedding if config.tie_word_embeddings else None
        self.head = VocabParallelHead(ops, config.vocab_size, config.hidden_size, dtype, device, tied)

    def forward(self, ws: Workspace, step: StepInputs, caches: Sequence[LayerCache]) -> None:
        """Leaves the logits of `step.sample_rows` in ws.logits, and fills the caches."""
        self.embedding.forward(ws.residual, step.token_ids)
        delta: Tensor | None = None
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.forward(ws, delta, cache, step.attention)
            delta = ws.hidden
        self.final_norm.forward(ws.normed, ws.residual, delta)
        self.ops.gather_rows(ws.picked, ws.normed, step.sample_rows)
        self.head.forward(ws.logits, ws.picked)

    def load(self, name: str, tensor: Tensor) -> None:
        """Takes one checkpoint tensor by its Hugging Face name. KeyError for a name that this decoder does not have."""
        match name.split("."):
            case ["model", "embed_tokens", "weight"]:
                self.embedding.load(tensor)
            case ["model", "norm", "weight"]:
                self.final_norm.load(tensor)
            case ["lm_head", "weight"]:
                if not self.config.tie_word_embeddings:  # a tied checkpoint may store its copy
                    self.head.load(tensor)
            case ["model", "layers", index, *rest]:
                self._load_layer(self.layers[int(index)], ".".join(rest), tensor)
            case _:
                raise KeyError(name)

    def _load_layer(self, layer: DecoderLayer, name: str, tensor: Tensor) -> None:
        norms = {
            "input_layernorm.weight": layer.input_norm,
            "post_attention_layernorm.weight": layer.post_attention_norm,
        }
        if name in norms:
            norms[name].load(tensor)
            return
        block, projection, kind = name.split(".")
        linears: dict[str, tuple[ColumnParallelLinear, int]] = {
            "self_attn.q_proj": (layer.qkv, 0),
            "self_attn.k_proj": (layer.qkv, 1),
            "self_attn.v_proj": (layer.qkv, 2),
            "self_attn.o_proj": (layer.output, 0),
            "mlp.gate_proj": (layer.mlp.gate_up, 0),
            "mlp.up_proj": (layer.mlp.gate_up, 1),
            "mlp.down_proj": (layer.mlp.down, 0),
        }
        linear, part = linears[f"{block}.{projection}"]
        linear.load_part(part, tensor, bias=kind == "bias")

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, a tied head counted once."""
        tensors = {
            id(part): part
            for owner in (self.embedding, self.head, self.final_norm, *self._layer_parts())
            for part in (owner.weight, getattr(owner, "bias", None))
            if part is not None
        }
        return sum(tensor.nbytes for tensor in tensors.values())

    def _layer_parts(self) -> list[RMSNorm | ColumnParallelLinear]:
        return [
            part
            for layer in self.layers
            for part in (
                layer.input_norm,
                layer.qkv,
                layer.output,
                layer.post_attention_norm,
                layer.mlp.gate_up,
                layer.mlp.down,
            )
        ]
