"""Reads the rotary keys and tensors of a GGUF file.

Owns what `rope.*`, `rope_freqs` and `rope_factors_*` mean. Knows no other keys.
Invariant: a scaling that is not known is refused; what a scaling leaves open gets the published default.
"""

from __future__ import annotations

import math

from engine.checkpoint.gguf_keys import GgufKeys
from engine.checkpoint.hf_rope import longrope_magnitude
from engine.checkpoint.info import UnsupportedCheckpointError
from engine.config import RopeScaling

_LLAMA3_DIVISORS = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (_LLAMA3_DIVISORS, _LONG, _SHORT)  # configuration in the shape of tensors


def read_rope_scaling(keys: GgufKeys, rope_theta: float, head_dim: int) -> RopeScaling | None:
    """The scaling of a file's rotary frequencies, None where there is none."""
    if _LLAMA3_DIVISORS in keys.header.tensors:
        return _llama3(keys, rope_theta, head_dim)
    if _LONG in keys.header.tensors and _SHORT in keys.header.tensors:
        return _longrope(keys, head_dim)
    kind = keys.get("rope.scaling.type")
    if kind is None and keys.get("rope.scale_linear") is not None:  # the older spelling
        return _linear(keys.number("rope.scale_linear"))
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return _linear(keys.number("rope.scaling.factor"))
    if kind == "yarn":
        return _yarn(keys)
    raise UnsupportedCheckpointError(
        f"{keys.path}: rope scaling {kind!r} is not supported; supported are none, linear, yarn, llama3 and longrope"
    )


def _linear(factor: float) -> RopeScaling | None:
    return None if factor == 1.0 else RopeScaling("linear", factor)


def _original_context(keys: GgufKeys, default: int) -> int:
    return keys.count("rope.scaling.original_context_length", default)


def _yarn(keys: GgufKeys) -> RopeScaling:
    factor = keys.number("rope.scaling.factor")
    magnitude = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=_original_context(keys, keys.count("context_length")),
        attention_factor=magnitude * keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _longrope(keys: GgufKeys, head_dim: int) -> RopeScaling:
    longest = keys.count("context_length")
    original = _original_context(keys, longest)
    factor = longest / original
    return RopeScaling(
        "longrope",
        factor,
        original_max_position_embeddings=original,
        attention_factor=keys.number("rope.scaling.attn_factor", longrope_magnitude(factor, original)),
        short_factors=keys.floats(_SHORT, head_dim // 2),
        long_factors=keys.floats(_LONG, head_dim // 2),
    )


def _llama3(keys: GgufKeys, rope_theta: float, head_dim: int) -> RopeScaling:
    """The llama3 scaling that `rope_freqs` (one divisor per rotary pair) was made from; refused where none fits."""
    divisors = keys.floats(_LLAMA3_DIVISORS, head_dim // 2)
    scaling = RopeScaling(
        "llama3", factor=max(divisors), original_max_position_embeddings=_original_context(keys, 8192)
    )
    expected = [_llama3_divisor(scaling, rope_theta ** (-2 * pair / head_dim)) for pair in range(head_dim // 2)]
    if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(divisors, expected, strict=True)):
        raise UnsupportedCheckpointError(
            f"{keys.path}: the rotary factors in {_LLAMA3_DIVISORS} are not those of Llama 3.1's scaling (low 1, high "
            f"4, original context {scaling.original_max_position_embeddings}); use the safetensors checkpoint"
        )
    return scaling


def _llama3_divisor(scaling: RopeScaling, frequency: float) -> float:
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)  # within the original context
    if turns > scaling.high_freq_factor:
        return 1.0
    if turns < scaling.low_freq_factor:
        return scaling.factor
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)
