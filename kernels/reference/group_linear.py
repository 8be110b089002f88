"""Products and look-ups of weights in codes, in plain torch: the oracle, and what serves where nothing faster does.

A part of the weights at a time is expanded to fp32 (fp64 for a float64 model); the whole is never there at full size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.group_quant import GroupQuant
from kernels.ops import accumulation_dtype
from kernels.reference.linear import ROW_ALIGNMENT

_EXPANDED_AT_ONCE = 1 << 22  # weights


def prepare_group_quant(weight: GroupQuant) -> GroupQuant:
    """See `kernels.ops.PrepareGroupQuant`: the layout "rows" is this backend's own."""
    return weight


def group_linear(out: Tensor, x: Tensor, weight: GroupQuant, bias: Tensor | None) -> None:
    """See `kernels.ops.GroupLinear`. Any number of rows; each product has exactly ROW_ALIGNMENT of them."""
    outputs, inputs = weight.shape
    wide = accumulation_dtype(x.dtype)
    rows = torch.zeros(-(-x.shape[0] // ROW_ALIGNMENT) * ROW_ALIGNMENT, inputs, dtype=wide, device=x.device)
    rows[: x.shape[0]] = x
    if weight.activation_bits == 8 and x.dtype == torch.bfloat16:
        rows = weight.rounded_activations(rows).to(wide)
    step = max(1, _EXPANDED_AT_ONCE // inputs)
    for first in range(0, outputs, step):
        columns = slice(first, min(first + step, outputs))
        expanded = weight.rows(columns).dequantised(wide).t()
        blocks = [rows[start : start + ROW_ALIGNMENT] @ expanded for start in range(0, rows.shape[0], ROW_ALIGNMENT)]
        product = torch.cat(blocks)[: x.shape[0]]
        if bias is not None:
            product += bias[columns].to(wide)
        out[:, columns] = product


def group_embedding(out: Tensor, token_ids: Tensor, table: GroupQuant) -> None:
    """See `kernels.ops.GroupEmbedding`."""
    out.copy_(table.rows(token_ids).dequantised(accumulation_dtype(out.dtype)))
