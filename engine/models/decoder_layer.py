"""One layer of the decoder, in the three ways that families place its norms.

Owns a layer's weights and the order of its ops; knows neither files nor the layers beside it. Invariant: no tensor
arithmetic here, only `kernels.ops` on workspace buffers. `ws.residual` lacks what the last block has yet to add, the
delta; the norm or sum that follows adds it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.attention import PagedSelfAttention
from engine.layers.linear import ColumnParallelLinear, RowParallelLinear, Weight
from engine.layers.mixture import MixtureMLP
from engine.layers.mlp import GatedMLP
from engine.layers.norm import QueryKeyNorm, RMSNorm
from engine.layers.rotary import RotaryTables
from engine.models.workspace import Workspace
from kernels.ops import AttentionMetadata, KVCache, Ops


class DecoderLayer:
    """Norms before attention and MLP, as Llama and most others have them."""

    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def __init__(
        self,
        ops: Ops,
        config: ModelConfig,
        index: int,
        rotary: RotaryTables,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        hidden = config.hidden_size
        self.ops = ops
        self.residual_scale = config.residual_scale
        self.norms = {name: RMSNorm(ops, config, hidden, dtype, device) for name in self.norm_names}
        qkv_bias = config.attention_bias or config.qkv_bias
        self.qkv = ColumnParallelLinear(ops, hidden, (queries, keys, keys), bias=qkv_bias, dtype=dtype, device=device)
        self.qk_norm = None if config.qk_norm == "none" else QueryKeyNorm(ops, config, dtype, device)
        self.attention = PagedSelfAttention(ops, config, index, rotary)
        self.output = RowParallelLinear(ops, queries, hidden, bias=config.attention_bias, dtype=dtype, device=device)
        self.mlp = (MixtureMLP if config.num_experts else GatedMLP)(ops, config, dtype, device)

    def forward(self, ws: Workspace, delta: Tensor | None, cache: KVCache, metadata: AttentionMetadata) -> None:
        """delta: what the layer before has yet to add to the residual; this layer's own is left in ws.hidden."""
        self.norms["input_layernorm"].forward(ws.normed, ws.residual, delta)
        self.attend(ws, ws.normed, cache, metadata)
        self.norms["post_attention_layernorm"].forward(ws.normed, ws.residual, ws.hidden)
        self.feed_forward(ws, ws.normed)

    def attend(self, ws: Workspace, x: Tensor, cache: KVCache, metadata: AttentionMetadata) -> None:
        """ws.hidden = what attention over x adds to the residual."""
        self.qkv.forward(ws.qkv, x)
        if self.qk_norm is not None:
            self.qk_norm.forward(ws.qkv)
        self.attention.forward(ws.attended, ws.qkv, cache, metadata)
        self.output.forward(ws.hidden, ws.attended)
        if self.residual_scale != 1.0:
            self.ops.scale(ws.hidden, self.residual_scale)

    def feed_forward(self, ws: Workspace, x: Tensor) -> None:
        """ws.hidden = what the MLP of x adds to the residual."""
        if isinstance(self.mlp, MixtureMLP):
            self.mlp.forward(ws.hidden, x)
        else:
            self.mlp.forward(ws.hidden, x, ws.gate_up, ws.inner)
        if self.residual_scale != 1.0:
            self.ops.scale(ws.hidden, self.residual_scale)

    def load(self, name: str, weight: Weight) -> None:
        """Takes a tensor by its name within the layer. KeyError for one that this layer does not have."""
        stem, _, kind = name.rpartition(".")
        norms = self.all_norms()
        if stem in norms:
            assert isinstance(weight, Tensor)
            norms[stem].load(weight)
            return
        if isinstance(self.mlp, MixtureMLP) and stem.startswith("mlp."):
            self.mlp.load(name.removeprefix("mlp."), weight)
            return
        linear, part = self._linears()[stem]
        if kind == "bias":
            assert isinstance(weight, Tensor)
            linear.load_bias(weight, part)
        elif part is None:
            linear.load(weight)
        else:
            linear.load_part(part, weight)

    def all_norms(self) -> dict[str, RMSNorm]:
        """Every norm by its Hugging Face name."""
        if self.qk_norm is None:
            return self.norms
        return self.norms | {"self_attn.q_norm": self.qk_norm.query, "self_attn.k_norm": self.qk_norm.key}

    def _linears(self) -> dict[str, tuple[ColumnParallelLinear, int | None]]:
        """Hugging Face name -> the layer and which of its parts, None for all at once."""
        linears: dict[str, tuple[ColumnParallelLinear, int | None]] = {
            "self_attn.qkv_proj": (self.qkv, None),
            "self_attn.q_proj": (self.qkv, 0),
            "self_attn.k_proj": (self.qkv, 1),
            "self_attn.v_proj": (self.qkv, 2),
            "self_attn.o_proj": (self.output, None),
        }
        if isinstance(self.mlp, GatedMLP):
            linears["mlp.gate_up_proj"] = self.mlp.gate_up, None
            linears["mlp.gate_proj"] = self.mlp.gate_up, 0
            linears["mlp.up_proj"] = self.mlp.gate_up, 1
            linears["mlp.down_proj"] = self.mlp.down, None
        return linears

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded."""
        yield from (norm.weight for norm in self.all_norms().values())
        for linear in dict.fromkeys(linear for linear, _ in self._linears().values()):
            yield from linear.weights()
        if isinstance(self.mlp, MixtureMLP):
            yield from self.mlp.weights()


class PostNormLayer(DecoderLayer):
    """Norms after attention and MLP, before their results are added (OLMo 2)."""

    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(self, ws: Workspace, delta: Tensor | None, cache: KVCache, metadata: AttentionMetadata) -> None:
        if delta is not None:
            self.ops.add(ws.residual, delta)
        self.attend(ws, ws.residual, cache, metadata)
        self.norms["post_attention_layernorm"].forward(ws.hidden, ws.hidden, None)
        self.ops.add(ws.residual, ws.hidden)
        self.feed_forward(ws, ws.residual)
        self.norms["post_feedforward_layernorm"].forward(ws.hidden, ws.hidden, None)


class SandwichLayer(DecoderLayer):
    """Norms on both sides of attention and of the MLP (Gemma 2 and 3)."""

    norm_names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def forward(self, ws: Workspace, delta: Tensor | None, cache: KVCache, metadata: AttentionMetadata) -> None:
        self.norms["input_layernorm"].forward(ws.normed, ws.residual, delta)
        self.attend(ws, ws.normed, cache, metadata)
        self.norms["post_attention_layernorm"].forward(ws.hidden, ws.hidden, None)
        self.norms["pre_feedforward_layernorm"].forward(ws.normed, ws.residual, ws.hidden)
        self.feed_forward(ws, ws.normed)
        self.norms["post_feedforward_layernorm"].forward(ws.hidden, ws.hidden, None)


LAYER_CLASSES: dict[str, type[DecoderLayer]] = {"pre": DecoderLayer, "post": PostNormLayer, "sandwich": SandwichLayer}
