"""The gated activations in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.ops import accumulation_dtype


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `kernels.ops.SiluMul`."""
    wide = accumulation_dtype(gate_up.dtype)
    gate, up = gate_up.chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate.to(wide)).mul_(up.to(wide)))


def gelu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `kernels.ops.GeluMul`. Spelled out, since torch's own gives whole vectors and a row's rest different bits."""
    wide = accumulation_dtype(gate_up.dtype)
    gate, up = (half.to(wide) for half in gate_up.chunk(2, dim=-1))
    inner = (gate + 0.044715 * gate**3).mul_(math.sqrt(2 / math.pi))
    out.copy_((0.5 * gate).mul_(inner.tanh_().add_(1)).mul_(up))
