"""The cosine and sine tables of rotary embedding.

Angles are computed in fp32 for every compute dtype, as the checkpoints were trained (a float64 model gets fp32 angles
in fp64 tables: it proves the arithmetic, not the angles). A layer without rotary embedding has the table of angle 0.
Invariant: an angle depends on the position alone, never on how long its sequence is: cached keys stay valid. "longrope"
therefore chooses its factors once, and "dynamic" its base, by the longest sequence that the engine takes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import ModelConfig, RopeScaling

Tables = tuple[Tensor, Tensor]  # cos and sin, each [max_positions, head_dim / 2]


class RotaryTables:
    """The tables of every layer; layers that rotate alike share theirs."""

    def __init__(self, config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """dtype: the accumulation dtype."""
        self._config = config
        self._shape = (max_positions, config.head_dim // 2)
        self._dtype, self._device = dtype, device
        self._made: dict[str, Tables] = {}

    def of_layer(self, index: int) -> Tables:
        """cos and sin for layer `index`."""
        config = self._config
        kind = "full"
        if index in config.nope_layers:
            kind = "none"
        elif config.window_rope_theta is not None and config.layer_windows and config.layer_windows[index]:
            kind = "window"
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: str) -> Tables:
        config, max_positions = self._config, self._shape[0]
        if kind == "none":
            ones = torch.ones(self._shape, dtype=self._dtype, device=self._device)
            return ones, torch.zeros_like(ones)
        scaling, amplitude = config.rope_scaling, 1.0
        if kind == "window" and config.window_rope_theta is not None:
            frequencies = rotary_periods(config.window_rope_theta, config.head_dim).reciprocal()
        elif scaling is None:
            frequencies = rotary_periods(config.rope_theta, config.head_dim).reciprocal()
        else:
            periods = rotary_periods(config.rope_theta, config.head_dim)
            frequencies = scaled_frequencies(periods, scaling, config.rope_theta, max_positions)
            amplitude = scaling.attention_factor
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        cos, sin = angles.cos().mul(amplitude), angles.sin().mul(amplitude)
        return cos.to(self._device, self._dtype), sin.to(self._device, self._dtype)


def rotary_periods(theta: float, head_dim: int) -> Tensor:
    """theta ** (2 i / head_dim), fp32 [head_dim / 2]: the tokens that a pair takes for one radian."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32).div(head_dim)
    return torch.pow(torch.tensor(theta, dtype=torch.float32), exponents)


def scaled_frequencies(periods: Tensor, scaling: RopeScaling, theta: float, max_positions: int) -> Tensor:
    """The frequencies [head_dim / 2] of a longer context. ValueError for a kind that is not known."""
    if scaling.kind == "linear":
        return periods.reciprocal().div(scaling.factor)
    if scaling.kind == "dynamic":
        return _stretched(periods, scaling, theta, max_positions).reciprocal()
    if scaling.kind == "llama3":
        return _by_wavelength(periods.reciprocal(), scaling)
    if scaling.kind == "yarn":
        return _yarn(periods, scaling, theta)
    if scaling.kind == "longrope":
        beyond = max_positions > scaling.original_max_position_embeddings
        factors = scaling.long_factors if beyond else scaling.short_factors
        return periods.mul(torch.tensor(factors, dtype=torch.float32)).reciprocal()
    raise ValueError(f"rope scaling {scaling.kind!r}; known are linear, dynamic, llama3, yarn, longrope")


def _stretched(periods: Tensor, scaling: RopeScaling, theta: float, max_positions: int) -> Tensor:
    """The periods of the base that fits `max_positions`, which up to the original context is theta itself."""
    head_dim, context = 2 * periods.shape[0], scaling.original_max_position_embeddings
    if max_positions <= context or head_dim == 2:
        return periods
    # in fp32 and in this order, as transformers computes it
    growth = torch.tensor(max_positions).mul(scaling.factor).div(context).sub(scaling.factor - 1)
    return rotary_periods(float(growth.pow(head_dim / (head_dim - 2)).mul(theta)), head_dim)


def _by_wavelength(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    context = scaling.original_max_position_embeddings
    wavelengths = frequencies.reciprocal().mul(math.tau)
    smooth = wavelengths.reciprocal().mul(context).sub(scaling.low_freq_factor)
    smooth = smooth.div(math.fsum((scaling.high_freq_factor, -scaling.low_freq_factor))).clamp(0, 1)
    return torch.lerp(frequencies.div(scaling.factor), frequencies, smooth)


def _yarn(periods: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Fast pairs keep their frequency, slow ones are interpolated, a ramp over the pairs lies between."""
    pairs = periods.shape[0]
    context = scaling.original_max_position_embeddings

    def pair_of(turns: float) -> float:
        """The pair, counted from the fastest, that turns this often within the original context."""
        return pairs * math.log(context / (turns * math.tau)) / math.log(theta)

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low or 0.001
    kept = 1 - torch.arange(pairs, dtype=torch.float32).sub(low).div(width).clamp(0, 1)
    return periods.mul(scaling.factor).reciprocal() * (1 - kept) + periods.reciprocal() * kept
