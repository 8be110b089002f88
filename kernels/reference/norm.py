"""RMS norms in plain torch. Sums run per row in fp32 (fp64 for a float64 model)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import accumulation_dtype


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.RmsNorm`."""
    wide = x.to(accumulation_dtype(x.dtype))
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    out.copy_((wide * inverse).mul_(weight.to(wide.dtype) + offset))


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.AddRmsNorm`."""
    residual.add_(x)
    rms_norm(out, residual, weight, eps, offset)


def group_rms_norm(x: Tensor, first: int, groups: int, weight: Tensor, eps: float, offset: float = 0.0) -> None:
    """See `kernels.ops.GroupRmsNorm`."""
    size = weight.shape[0]
    columns = x[:, first : first + groups * size].view(x.shape[0], groups, size)
    rms_norm(columns, columns, weight, eps, offset)
