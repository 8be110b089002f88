"""`kernels.ops.Linear` in C++: bf16 or fp32 weights as they lie in the checkpoint, any number of rows, fp32 sums."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, function, pointer, rows_pointer

_same = by_dtype("pz_linear", 4, 5)
_to_fp32 = {torch.bfloat16: function("pz_linear_bf16_fp32", 4, 5), torch.float32: _same[torch.float32]}


def row_alignment(dtype: torch.dtype, device: torch.device) -> int:
    """See `kernels.ops.Ops.row_alignment`: any number of rows will do."""
    return 1


def linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """See `kernels.ops.Linear`."""
    dtype = x.dtype
    call = (_to_fp32 if out.dtype == torch.float32 else _same)[dtype]
    (rows, inputs), outputs = x.shape, weight.shape[0]
    target, stride = rows_pointer(out, out.dtype)
    call(
        target,
        pointer(x, dtype),
        pointer(weight, dtype),
        None if bias is None else pointer(bias, dtype),
        rows,
        outputs,
        inputs,
        inputs,
        stride,
    )
