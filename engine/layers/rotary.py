"""The cosine and sine tables of rotary embedding.

Angles are computed in fp32 for every compute dtype, as the checkpoints were trained (a float64 model gets fp32 angles
in fp64 tables: it proves the arithmetic, not the angles). Scaling: "linear" divides the frequencies; "llama3" does so
by wavelength (Llama 3.1's published rule).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import ModelConfig, RopeScaling


def rotary_tables(
    config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin, each [max_positions, head_dim / 2], in the accumulation dtype `dtype`."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32).div(config.head_dim)
    frequencies = torch.pow(torch.tensor(config.rope_theta, dtype=torch.float32), exponents).reciprocal()
    if config.rope_scaling is not None:
        frequencies = scaled_frequencies(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def scaled_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """The frequencies [head_dim / 2] of a longer context. ValueError for a kind that is not known."""
    if scaling.kind == "linear":
        return frequencies.div(scaling.factor)
    if scaling.kind != "llama3":
        raise ValueError(f"rope scaling {scaling.kind!r}; known are linear, llama3")
    context = scaling.original_max_position_embeddings
    wavelengths = frequencies.reciprocal().mul(math.tau)
    smooth = wavelengths.reciprocal().mul(context).sub(scaling.low_freq_factor)
    smooth = smooth.div(math.fsum((scaling.high_freq_factor, -scaling.low_freq_factor))).clamp(0, 1)
    return torch.lerp(frequencies.div(scaling.factor), frequencies, smooth)
