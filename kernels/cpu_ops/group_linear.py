"""`kernels.ops.GroupLinear` and `GroupEmbedding` in C++: codes are expanded as they are multiplied."""

from __future__ import annotations

from ctypes import c_int

import torch
from torch import Tensor

from kernels.cpu_ops.binding import by_dtype, function, leaves, pointer, rows_pointer, symbol
from kernels.cpu_ops.group_tiles import TiledQuant, serves, tiled
from kernels.group_quant import GroupQuant
from kernels.reference import group_linear as reference

_same = by_dtype("pz_group_linear", 4, 3)
_to_fp32 = {torch.bfloat16: function("pz_group_linear_bf16_fp32", 4, 3), torch.float32: _same[torch.float32]}
_rows = by_dtype("pz_group_embedding", 3, 2)


def prepare_group_quant(weight: GroupQuant) -> GroupQuant:
    """See `kernels.ops.PrepareGroupQuant`: in layout "tiles", or given back as it is where `serves` says no."""
    if not serves(weight):
        return weight.with_activation_bits(16)
    return tiled(weight if multiplies_bytes(weight.bits) else weight.with_activation_bits(16))


def multiplies_bytes(bits: int) -> bool:
    """Whether products of codes of `bits` bits with 8-bit activations are the fastest that this processor has."""
    return bool(symbol("pz_multiplies_bytes")(c_int(bits)))


def group_linear(out: Tensor, x: Tensor, weight: GroupQuant, bias: Tensor | None) -> None:
    """See `kernels.ops.GroupLinear`. A weight that `group_tiles.serves` refused goes to the reference."""
    if not isinstance(weight, TiledQuant):
        leaves("a product of a format that the C++ kernels do not take")
        reference.group_linear(out, x, weight, bias)
        return
    dtype, out_dtype = x.dtype, out.dtype
    call = (_to_fp32 if out_dtype == torch.float32 else _same)[dtype]
    target, target_stride = rows_pointer(out, out_dtype)
    source, source_stride = rows_pointer(x, dtype)
    shift = None if bias is None else pointer(bias, dtype)
    call(target, source, weight.address, shift, x.shape[0], source_stride, target_stride)


def group_embedding(out: Tensor, token_ids: Tensor, table: GroupQuant) -> None:
    """See `kernels.ops.GroupEmbedding`. A table that `group_tiles.serves` refused goes to the reference."""
    if not isinstance(table, TiledQuant):
        leaves("an embedding of a format that the C++ kernels do not take")
        reference.group_embedding(out, token_ids, table)
        return
    target, stride = rows_pointer(out, out.dtype)
    _rows[out.dtype](target, pointer(token_ids, torch.int64), table.address, len(token_ids), stride)
