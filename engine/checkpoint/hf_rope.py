"""Reads the rotary fields of config.json, in the spellings of all transformers versions.

Owns what `rope_theta`, `rope_scaling` and `rope_parameters` mean. Knows no tensors.
Invariant: a scaling that is not known is refused; what a scaling leaves open gets transformers' default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.checkpoint.fields import Fields
from engine.checkpoint.hf_families import Family
from engine.checkpoint.info import UnsupportedCheckpointError
from engine.config import RopeScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """`window_theta` is the unscaled base of sliding layers that have their own."""

    theta: float
    scaling: RopeScaling | None
    window_theta: float | None


def read_rope(fields: Fields, family: Family, head_dim: int) -> Rope:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    parameters = fields.part("rope_parameters")
    theta = fields.number("rope_theta", family.rope_theta)
    window_theta = family.window_rope_theta
    if window_theta is not None:
        window_theta = fields.number("rope_local_base_freq", window_theta)
        sliding = parameters.part("sliding_attention") if parameters else None
        if sliding is not None:
            if _kind(sliding) != "default":
                raise UnsupportedCheckpointError(
                    f"{fields.path}: rope scaling {_kind(sliding)!r} of sliding layers is not supported"
                )
            window_theta = sliding.number("rope_theta", window_theta)
        parameters = (parameters.part("full_attention") if parameters else None) or parameters
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
    scaling = parameters or fields.part("rope_scaling")
    return Rope(theta, None if scaling is None else _scaling(fields, scaling, family, head_dim), window_theta)


def _kind(scaling: Fields) -> str:
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def _scaling(fields: Fields, scaling: Fields, family: Family, head_dim: int) -> RopeScaling | None:
    kind = _kind(scaling)
    if family.key == "phi3" and kind in ("su", "yarn"):  # what early Phi-3 files call longrope
        kind = "longrope"
    if kind == "default":
        return None
    if kind == "dynamic":
        return _dynamic(fields, scaling)
    if kind == "linear":
        return RopeScaling("linear", scaling.number("factor"))
    if kind == "llama3":
        return _llama3(scaling)
    if kind == "yarn":
        return _yarn(fields, scaling)
    if kind == "longrope":
        return _longrope(fields, scaling, head_dim)
    raise UnsupportedCheckpointError(
        f"{fields.path}: rope scaling {kind!r} is not supported; "
        "supported are default, linear, dynamic, llama3, yarn and longrope"
    )


def _dynamic(fields: Fields, scaling: Fields) -> RopeScaling:
    factor = scaling.number("factor")
    if factor < 1:
        raise scaling.fail("factor", "a number of at least 1: how many times the context may grow")
    return RopeScaling(
        "dynamic", factor, original_max_position_embeddings=fields.count("max_position_embeddings", 2048)
    )


def _llama3(scaling: Fields) -> RopeScaling:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise scaling.fail("high_freq_factor", f"more than low_freq_factor, which is {low}")
    original = scaling.count("original_max_position_embeddings")
    return RopeScaling("llama3", scaling.number("factor"), low, high, original)


def _original_context(fields: Fields, scaling: Fields) -> tuple[int, float]:
    """The context the model was trained with, and how many times longer the present one is."""
    longest = fields.count("max_position_embeddings", 2048)
    original = fields.count(
        "original_max_position_embeddings", scaling.count("original_max_position_embeddings", longest)
    )
    return original, scaling.number("factor", longest / original)


def _yarn(fields: Fields, scaling: Fields) -> RopeScaling:
    original, factor = _original_context(fields, scaling)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention_factor = magnitude(1.0)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        attention_factor = magnitude(scaling.number("mscale")) / magnitude(scaling.number("mscale_all_dim"))
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=original,
        attention_factor=scaling.number("attention_factor", attention_factor),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
    )


def _longrope(fields: Fields, scaling: Fields, head_dim: int) -> RopeScaling:
    original, factor = _original_context(fields, scaling)
    return RopeScaling(
        "longrope",
        factor,
        original_max_position_embeddings=original,
        attention_factor=scaling.number("attention_factor", longrope_magnitude(factor, original)),
        short_factors=scaling.numbers("short_factor", head_dim // 2),
        long_factors=scaling.numbers("long_factor", head_dim // 2),
    )


def longrope_magnitude(factor: float, original_context: int) -> float:
    """What longrope multiplies cosines and sines by where nothing else is said."""
    if factor <= 1 or original_context <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))
