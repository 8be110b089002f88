"""A decoder layer of the dense families in plain fp32 torch, in the stages between which its matrices stand.

Owns the arithmetic of one layer, of the embedding and of the head, written for offline work: rows of tokens of equal
length, no cache, gradients flow. Knows neither files nor quantisation. Invariant: the same function as
`engine.models.decoder` (a test holds them against each other, family by family).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.config import ModelConfig
from engine.layers.rotary import RotaryTables

Weights = Mapping[str, Tensor]  # tensors by their Hugging Face names within a layer, fp32

QKV, OUTPUT, GATE_UP, DOWN = "qkv", "output", "gate_up", "down"  # the four places where a layer has matrices


def linear_names(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Place -> the matrices there, which share their input."""
    if config.fused_projections:
        return {
            QKV: ("self_attn.qkv_proj",),
            OUTPUT: ("self_attn.o_proj",),
            GATE_UP: ("mlp.gate_up_proj",),
            DOWN: ("mlp.down_proj",),
        }
    return {
        QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        OUTPUT: ("self_attn.o_proj",),
        GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
        DOWN: ("mlp.down_proj",),
    }


class LayerForward:
    """Layer `index`, stage by stage. x [B, L, H] is the residual before the layer."""

    def __init__(self, config: ModelConfig, index: int, rotary: RotaryTables) -> None:
        self.config = config
        self.names = linear_names(config)
        self.cos, self.sin = rotary.of_layer(index)
        self.window = config.layer_windows[index] if config.layer_windows else 0
        before, after = {
            "pre": (("input_layernorm", "post_attention_layernorm"), ("", "")),
            "post": (("", ""), ("post_attention_layernorm", "post_feedforward_layernorm")),
            "sandwich": (
                ("input_layernorm", "pre_feedforward_layernorm"),
                ("post_attention_layernorm", "post_feedforward_layernorm"),
            ),
        }[config.norm_placement]
        self.norm_before = dict(zip((QKV, GATE_UP), before, strict=True))  # place -> the norm whose output it takes
        self._norm_after = dict(zip((OUTPUT, DOWN), after, strict=True))

    def attention_input(self, weights: Weights, x: Tensor) -> Tensor:
        """What q, k and v take, [B, L, H]."""
        return self._norm(weights, self.norm_before[QKV], x)

    def attend(self, weights: Weights, normed: Tensor) -> Tensor:
        """What the output projection takes, [B, L, A * D]."""
        config = self.config
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        qkv = self._product(weights, QKV, normed)
        q, k, v = torch.split(qkv, [queries, keys, keys], dim=-1)
        if config.qk_norm == "projection":
            q = self._norm(weights, "self_attn.q_norm", q)
            k = self._norm(weights, "self_attn.k_norm", k)
        q, k, v = (part.view(*part.shape[:2], -1, config.head_dim).transpose(1, 2) for part in (q, k, v))
        if config.qk_norm == "head":
            q = self._norm(weights, "self_attn.q_norm", q)
            k = self._norm(weights, "self_attn.k_norm", k)
        q, k = self._rotate(q), self._rotate(k)
        return self._softmax_attention(q, k, v).transpose(1, 2).flatten(2)

    def add_attention(self, weights: Weights, x: Tensor, attended: Tensor) -> Tensor:
        """The residual behind attention."""
        return x + self._block_result(weights, OUTPUT, attended)

    def mlp_input(self, weights: Weights, x: Tensor) -> Tensor:
        """What gate and up take, [B, L, H]; x is the residual behind attention."""
        return self._norm(weights, self.norm_before[GATE_UP], x)

    def mlp_inner(self, weights: Weights, normed: Tensor) -> Tensor:
        """What the down projection takes, [B, L, I]."""
        gate, up = self._product(weights, GATE_UP, normed).chunk(2, dim=-1)
        gate = F.silu(gate) if self.config.activation == "silu" else F.gelu(gate, approximate="tanh")
        return gate * up

    def add_mlp(self, weights: Weights, x: Tensor, inner: Tensor) -> Tensor:
        """The residual behind the layer."""
        return x + self._block_result(weights, DOWN, inner)

    def mlp(self, weights: Weights, x: Tensor) -> Tensor:
        """The stages from the residual behind attention on."""
        return self.add_mlp(weights, x, self.mlp_inner(weights, self.mlp_input(weights, x)))

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        """All stages, one after the other."""
        x = self.add_attention(weights, x, self.attend(weights, self.attention_input(weights, x)))
        return self.mlp(weights, x)

    def _product(self, weights: Weights, place: str, x: Tensor) -> Tensor:
        names = self.names[place]
        parts = [F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias")) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _block_result(self, weights: Weights, place: str, x: Tensor) -> Tensor:
        result = self._norm(weights, self._norm_after[place], self._product(weights, place, x))
        return result * self.config.residual_scale if self.config.residual_scale != 1.0 else result

    def _norm(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, weights[f"{name}.weight"], self.config) if name else x

    def _rotate(self, x: Tensor) -> Tensor:
        """x [B, heads, L, D]: its halves turned by the angles of positions 0 to L - 1."""
        length = x.shape[2]
        cos, sin = self.cos[:length], self.sin[:length]
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return turned.to(x.dtype)  # the tables are fp32

    def _softmax_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        config, length = self.config, q.shape[2]
        scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        groups = config.num_attention_heads // config.num_key_value_heads
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        if not self.window and not config.attention_soft_cap:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        scores = (q @ k.transpose(-1, -2)) * scale
        if config.attention_soft_cap:
            scores = torch.tanh(scores / config.attention_soft_cap) * config.attention_soft_cap
        steps = torch.arange(length, device=q.device)
        distance = steps[:, None] - steps[None, :]
        hidden = distance < 0
        if self.window:
            hidden |= distance >= self.window
        return scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ v


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """x / rms(x) * (weight + offset) along the last dimension."""
    return F.rms_norm(x, (x.shape[-1],), weight + config.norm_offset, config.rms_norm_eps)


def embed(token_ids: Tensor, table: Tensor, config: ModelConfig) -> Tensor:
    """fp32 [B, L, H] of token_ids int64 [B, L]; table [V, H] of any float dtype."""
    return F.embedding(token_ids, table).to(torch.float32) * config.embedding_scale


def logits(x: Tensor, norm: Tensor, head: Tensor, config: ModelConfig) -> Tensor:
    """fp32 [..., V] of the residual x [..., H] behind the last layer; head [V, H]."""
    found = F.linear(rms_norm(x, norm, config), head.to(torch.float32)) * config.logits_scale
    cap = config.logits_soft_cap
    return torch.tanh(found / cap) * cap if cap else found
