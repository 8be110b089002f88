"""RMSNorm with the residual sum that precedes it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import Ops


class RMSNorm:
    """out = rms_norm(residual), after residual += delta where there is a delta."""

    def __init__(self, ops: Ops, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.ops = ops
        self.eps = eps
        self.weight = torch.empty(size, dtype=dtype, device=device)

    def load(self, tensor: Tensor) -> None:
        """Copies the weight [size] in."""
        self.weight.copy_(tensor)

    def forward(self, out: Tensor, residual: Tensor, delta: Tensor | None) -> None:
        if delta is None:
            self.ops.rms_norm(out, residual, self.weight, self.eps)
        else:
            self.ops.add_rms_norm(out, residual, delta, self.weight, self.eps)
