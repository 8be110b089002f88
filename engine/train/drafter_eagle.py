"""An EAGLE-3 style drafter in training: one decoder layer over the target's hidden states and its own.

Owns the weights' names (the public layout), their first values and the unrolled pass. Knows neither data nor optimiser.
Invariant: step s of the pass is what the engine computes s drafts behind the last known token (a test compares them).
Source: Li et al., EAGLE-3, arXiv 2503.01840.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.config import ModelConfig
from engine.layers.rotary import RotaryTables
from engine.train.drafter_attention import unrolled_attention
from engine.train.drafter_batches import Batch
from engine.train.drafter_target import NUM_FEATURES, Target

FC, LAYER, NORM, HEAD = "fc.weight", "midlayer.", "norm.weight", "lm_head.weight"
_Q, _K, _V, _O = (f"{LAYER}self_attn.{name}_proj.weight" for name in "qkvo")
_GATE, _UP, _DOWN = (f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
_INPUT, _HIDDEN, _POST = (
    f"{LAYER}{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
)
_EMBEDDED_STD = 0.02  # of the half of q, k and v that takes the token: the target's layer has none


def layer_config(config: ModelConfig) -> ModelConfig:
    """The drafter's layer: a Llama layer of the target's sizes and rotary base, with no scaling for long contexts."""
    return replace(
        config,
        architecture="llama",
        num_hidden_layers=1,
        attention_bias=False,
        mlp_bias=False,
        qkv_bias=False,
        qk_norm="none",
        norm_placement="pre",
        norm_offset=0.0,
        activation="silu",
        fused_projections=False,
        layer_windows=(),
        window_rope_theta=None,
        rope_scaling=None,
        nope_layers=(),
        attention_scale=None,
        attention_soft_cap=0.0,
        residual_scale=1.0,
    )


class EagleDrafter:
    """The functions of the drafter; its weights are handed in. lead: see `engine.train.drafter_medusa`."""

    kind = "eagle"
    lead = 0

    def __init__(self, config: ModelConfig, longest: int, device: torch.device) -> None:
        self.config = layer_config(config)
        self.depth = 0  # as deep as one asks
        rotary = RotaryTables(self.config, longest, torch.float32, device)
        self._cos, self._sin = rotary.of_layer(0)

    def initial(self, target: Target, chosen: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """fp32 first values: the layer from the target's last, fc from the last feature, the head from its rows."""
        config = target.config
        hidden = config.hidden_size
        last = {
            name: tensor.float().cpu() for name, tensor in target.layer_weights(config.num_hidden_layers - 1).items()
        }
        parts = _parts(last, config)
        norms = [name for name in last if name.endswith("layernorm.weight")]
        first, post = (last[name].clone() + config.norm_offset for name in (norms[0], norms[-1]))
        fc = torch.zeros(hidden, NUM_FEATURES * hidden)
        fc[:, -hidden:] = torch.eye(hidden)
        weights = {FC: fc, _INPUT: torch.ones(hidden), _HIDDEN: first, _POST: post}
        for name in (_Q, _K, _V):
            of_token = torch.randn(parts[name].shape, generator=generator) * _EMBEDDED_STD
            weights[name] = torch.cat((of_token, parts[name]), dim=1)
        weights |= {name: parts[name] for name in (_O, _GATE, _UP, _DOWN)}
        weights[NORM] = target.final_norm.float().cpu() + config.norm_offset
        weights[HEAD] = target.head[chosen.to(target.device)].float().cpu() * config.logits_scale
        return {name: tensor.clone() for name, tensor in weights.items()}

    def unroll(self, weights: Mapping[str, Tensor], target: Target, batch: Batch, steps: int) -> Iterator[Tensor]:
        """Hidden states [B, L - s, H] of steps s = 0, 1, ...: that at base position i predicts token i + s + 1.

        They are what `head` takes. weights: in the dtype of the work.
        """
        config = self.config
        of_token, of_hidden = torch.cat([weights[name] for name in (_Q, _K, _V)]).chunk(2, dim=1)
        embedded = self._norm(target.embed(batch.token_ids), weights[_INPUT])
        from_token = F.linear(embedded, of_token)
        gate_up = torch.cat([weights[name] for name in (_GATE, _UP)])
        h = F.linear(F.pad(batch.features, (0, 0, 1, -1)), weights[FC])
        sizes = [config.num_attention_heads * config.head_dim, *[config.num_key_value_heads * config.head_dim] * 2]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(steps):
            length = batch.token_ids.shape[1] - step
            h = h[:, :length]
            qkv = from_token[:, step:] + F.linear(self._norm(h, weights[_HIDDEN]), of_hidden)
            q, k, v = (
                part.view(*part.shape[:2], -1, config.head_dim).transpose(1, 2)
                for part in torch.split(qkv, sizes, dim=-1)
            )
            q, k = self._rotate(q, step), self._rotate(k, step)
            keys, values = [one[:, :, :length] for one in keys], [one[:, :, :length] for one in values]
            keys.append(k)
            values.append(v)
            attended = unrolled_attention(q, keys[0], values[0], keys[1:], values[1:]).transpose(1, 2).flatten(2)
            h = h + F.linear(attended, weights[_O])
            gate, up = F.linear(self._norm(h, weights[_POST]), gate_up).chunk(2, dim=-1)
            h = h + F.linear(F.silu(gate) * up, weights[_DOWN])
            yield h

    def logits(self, weights: Mapping[str, Tensor], rows: Tensor, step: int) -> Tensor:
        """[R, n] of hidden states [R, H]; they need not know which step they are of."""
        del step
        return F.linear(self._norm(rows, weights[NORM]), weights[HEAD])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_norm_eps)

    def _rotate(self, x: Tensor, first: int) -> Tensor:
        """x [B, heads, L, D] at positions from `first` on."""
        cos, sin = (table[first : first + x.shape[2]].to(x.dtype) for table in (self._cos, self._sin))
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _parts(last: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The matrices of the target's last layer under the drafter's names."""
    if config.fused_projections:
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        q, k, v = torch.split(last["self_attn.qkv_proj.weight"], [queries, keys, keys])
        gate, up = last["mlp.gate_up_proj.weight"].chunk(2)
    else:
        q, k, v = (last[f"self_attn.{name}_proj.weight"] for name in "qkv")
        gate, up = (last[f"mlp.{name}_proj.weight"] for name in ("gate", "up"))
    if config.attention_scale is not None:
        q = q * (config.attention_scale * config.head_dim**0.5)
    o, down = last["self_attn.o_proj.weight"], last["mlp.down_proj.weight"]
    return {_Q: q, _K: k, _V: v, _O: o, _GATE: gate, _UP: up, _DOWN: down}
