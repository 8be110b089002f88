"""RMS norms in plain torch. Sums run per row in fp32 (fp64 for a float64 model)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import accumulation_dtype


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """See `kernels.ops.RmsNorm`."""
    wide = x.to(accumulation_dtype(x.dtype))
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    out.copy_((wide * inverse).mul_(weight.to(wide.dtype)))


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """See `kernels.ops.AddRmsNorm`."""
    residual.add_(x)
    rms_norm(out, residual, weight, eps)
