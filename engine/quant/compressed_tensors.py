"""compressed-tensors' integer layouts, pack-quantized and int-quantized, as codes and the first the other way.

Owns the offset of signed codes, the packing of zero points along the outputs, and act order. Knows nothing of files or
names.
Invariant: codes, scales and zeros are the checkpoint's, unrounded; a signed code and its zero are both stored here with
2^(bits - 1) added.
Source: compressed-tensors 0.20.1, compressors/pack_quantized and compressors/naive_quantized.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo
from engine.quant.words import code_bytes, codes_of, copied, input_order, scheme_of, words_of
from kernels.group_quant import GroupQuant, pack_nibbles


def read_packed(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """weight_packed int32 [out, ceil(in * bits / 32)], codes with the offset; weight_scale [out, G], [out] or [1].

    weight_zero_point int32 [ceil(out * bits / 32), G], packed along the outputs with the offset; without it the codes
    are symmetric. weight_g_idx: whole numbers [in], each input's group. w = scale * (code - zero).
    """
    outputs, inputs = tensor.shape
    scheme = scheme_of(tensor)
    order = input_order(tensor, parts["weight_g_idx"]) if "weight_g_idx" in parts else None
    if order is None:
        codes = code_bytes(parts["weight_packed"], scheme.bits, inputs)
    else:
        codes = codes_of(parts["weight_packed"], scheme.bits, inputs)[:, order.long()]
        codes = pack_nibbles(codes) if scheme.bits == 4 else codes
    zero: int | Tensor = 2 ** (scheme.bits - 1)
    if "weight_zero_point" in parts:
        zero = codes_of(parts["weight_zero_point"].t(), scheme.bits, outputs).t().contiguous()
    return _matrix(tensor, codes, parts["weight_scale"], zero, order)


def read_int8(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """weight int8 [out, in]; weight_scale [out, G], [out] or [1]; weight_zero_point int8 as the scale, or absent."""
    codes = parts["weight"].view(torch.uint8) ^ 0x80  # the same as adding 128 to a signed byte
    zero: int | Tensor = 128
    if "weight_zero_point" in parts:
        stored = parts["weight_zero_point"].to(torch.int16)
        zero = _per_group(tensor, (stored + 128).to(torch.uint8))
    return _matrix(tensor, codes, parts["weight_scale"], zero, None)


def pack(
    codes: Tensor, zeros: Tensor | None, scales: Tensor, bits: int, *, g_idx: Tensor | None = None
) -> dict[str, Tensor]:
    """The stored tensors of a matrix in pack-quantized.

    codes: uint8 [out, in] in the activations' order, the offset included. zeros: uint8 [out, G], the offset included,
    or None for symmetric codes. scales: [out, G]. g_idx: whole numbers [in] for act order by groups, or None.
    """
    stored = {
        "weight_packed": words_of(codes, bits),
        "weight_scale": scales.contiguous(),
        "weight_shape": torch.tensor(codes.shape, dtype=torch.int64),
    }
    if zeros is not None:
        stored["weight_zero_point"] = words_of(zeros.t().contiguous(), bits).t().contiguous()
    if g_idx is not None:
        stored["weight_g_idx"] = g_idx.to(torch.int32)
    return stored


def _matrix(tensor: TensorInfo, codes: Tensor, scale: Tensor, zero: int | Tensor, order: Tensor | None) -> GroupQuant:
    outputs, inputs = tensor.shape
    scheme = scheme_of(tensor)
    return GroupQuant(
        (outputs, inputs), scheme.bits, scheme.group_size, codes, _per_group(tensor, scale), zero=zero, perm=order
    )


def _per_group(tensor: TensorInfo, values: Tensor) -> Tensor:
    """[out, G], [out] or [1] -> [out, G]."""
    outputs, inputs = tensor.shape
    groups = inputs // scheme_of(tensor).group_size
    return copied(values.reshape(-1, 1 if values.numel() < outputs * groups else groups).expand(outputs, groups))
