"""The gated activation in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import accumulation_dtype


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `kernels.ops.SiluMul`."""
    wide = accumulation_dtype(gate_up.dtype)
    gate, up = gate_up.chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate.to(wide)).mul_(up.to(wide)))
