"""AWQ for a whole layer: scales are searched, folded into what stands before, and then the ranges are clipped.

Owns which scale folds into what: those of q, k, v and of gate, up into the norm before them (where the family has one
there), those of the output projection into v's rows, those of the down projection into up's rows. Knows nothing of
files. Invariant: before rounding, the layer computes the same function as it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.train.awq import AwqOptions, awq_matrix, search_scales
from engine.train.forward import DOWN, GATE_UP, OUTPUT, QKV, LayerForward
from engine.train.layer import QuantisedLayer, all_statistics, in_dtype


@dataclass(frozen=True, slots=True)
class Fold:
    """The scale of a place's inputs, and where it goes: a norm's weight, or the rows of a matrix.

    tie: int64 [K], the channel of norm or rows that each input comes from: with grouped-query attention several heads
    read the same rows of v.
    """

    place: str
    tie: Tensor
    norm: str = ""
    matrix: str = ""
    first_row: int = 0


def folds_of(forward: LayerForward) -> list[Fold]:
    """The scales that this family's layers have a place for."""
    config = forward.config
    hidden, inner = torch.arange(config.hidden_size), torch.arange(config.intermediate_size)
    found = [Fold(place, hidden, norm=norm) for place, norm in forward.norm_before.items() if norm]
    values, value_row = _value_rows(config)
    found.append(Fold(OUTPUT, _value_channels(config), matrix=values, first_row=value_row))
    up, up_row = ("mlp.gate_up_proj", config.intermediate_size) if config.fused_projections else ("mlp.up_proj", 0)
    found.append(Fold(DOWN, inner, matrix=up, first_row=up_row))
    return found


def _value_rows(config: ModelConfig) -> tuple[str, int]:
    if not config.fused_projections:
        return "self_attn.v_proj", 0
    return "self_attn.qkv_proj", (config.num_attention_heads + config.num_key_value_heads) * config.head_dim


def _value_channels(config: ModelConfig) -> Tensor:
    """Which channel of v each input of the output projection is a mean of."""
    channels = torch.arange(config.num_key_value_heads * config.head_dim).view(config.num_key_value_heads, 1, -1)
    return channels.expand(-1, config.num_attention_heads // config.num_key_value_heads, -1).flatten()


def fold(forward: LayerForward, weights: dict[str, Tensor], one: Fold, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales the inputs of the place's matrices up by `scale` [channels], and what they come from down.

    A norm is rounded to `dtype`, and the matrices make up for that too. Returns the scale of each input [K] in effect.
    """
    if one.norm:
        offset = forward.config.norm_offset
        old = weights[f"{one.norm}.weight"] + offset
        weights[f"{one.norm}.weight"] = (old / scale - offset).to(dtype).to(torch.float32)
        new = weights[f"{one.norm}.weight"] + offset
        scale = torch.where((new != 0) & (old != 0), old / new, scale)
    else:
        rows = slice(one.first_row, one.first_row + len(scale))
        for name in (f"{one.matrix}.weight", f"{one.matrix}.bias"):
            if name in weights:
                weights[name] = weights[name].clone()
                weights[name][rows] /= scale.view(-1, *(1,) * (weights[name].dim() - 1))
    of_input = scale[one.tie]
    for name in forward.names[one.place]:
        weights[f"{name}.weight"] = weights[f"{name}.weight"] * of_input
    return of_input


def quantise_with_awq(
    forward: LayerForward,
    weights: dict[str, Tensor],
    x: Tensor,
    options: AwqOptions,
    dtype: torch.dtype,
    step: Callable[[], None],
) -> QuantisedLayer:
    """x [R, L, H]: the residual before the layer, left as it is. weights is changed. dtype: of norms and biases.

    step is called now and then, and may raise.
    """
    statistics = all_statistics(forward, weights, x, step)
    hessians = {place: one.hessian for place, one in statistics.items()}
    for one in folds_of(forward):
        matrices = [weights[f"{name}.weight"] for name in forward.names[one.place]]
        scale, _ = search_scales(matrices, statistics[one.place].means, hessians[one.place], options, one.tie, step)
        of_input = fold(forward, weights, one, scale, dtype)
        hessians[one.place] = hessians[one.place] / of_input.unsqueeze(0) / of_input.unsqueeze(1)
        step()
    found = {}
    for place in (QKV, OUTPUT, GATE_UP, DOWN):
        for name in forward.names[place]:
            found[name] = awq_matrix(weights[f"{name}.weight"], hessians[place], options)
            step()
    return QuantisedLayer(found, in_dtype(weights, dtype))
