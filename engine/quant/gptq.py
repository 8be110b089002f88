"""GPTQ's layout, versions 1 and 2, as codes and the other way.

Owns the packing along the inputs, the meaning of stored zeros in each version, and act order. Knows nothing of files or
names.
Invariant: codes and scales are the checkpoint's, unrounded. Zeros lie in 0 to 2^bits - 1, as quantisers make them:
version 1 stores them less one, so that its largest stored value means 0.
Source: AutoGPTQ 0.7.1 and GPTQModel 7.7.0, nn_modules/qlinear; GPTQModel issue 2350.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo
from engine.quant.words import code_bytes, codes_of, copied, input_order, scheme_of, words_of
from kernels.group_quant import GroupQuant, pack_nibbles

_ONES = {4: 0x11111111, 8: 0x01010101}  # a word that holds 1 in every code


def read_v1(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """qweight int32 [in * bits / 32, out], qzeros int32 [G, out * bits / 32] with zero - 1, scales [G, out].

    g_idx (may be absent): whole numbers [in], each input's group. w = scale * (code - zero).
    """
    bits = scheme_of(tensor).bits
    return _read(tensor, parts, lambda words: codes_of(words, bits, tensor.shape[0]) + 1 & 2**bits - 1)


def read_v1_words(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """As version 1, from GPTQModel: there the ones were subtracted from whole words, so that a 0 borrowed."""
    bits = scheme_of(tensor).bits

    def zeros(words: Tensor) -> Tensor:
        return codes_of((words.to(torch.int64) + _ONES[bits]).to(torch.int32), bits, tensor.shape[0])

    return _read(tensor, parts, zeros)


def read_v2(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> GroupQuant:
    """As version 1, with the zeros themselves in qzeros."""
    return _read(tensor, parts, lambda words: codes_of(words, scheme_of(tensor).bits, tensor.shape[0]))


def pack(
    codes: Tensor, zeros: Tensor, scales: Tensor, bits: int, *, version: int = 2, g_idx: Tensor | None = None
) -> dict[str, Tensor]:
    """The stored tensors of a matrix.

    codes: uint8 [out, in] in the activations' order. zeros: uint8 [out, G]. scales: [out, G], stored in their own dtype
    (GPTQ's is fp16). g_idx: whole numbers [in]; by default consecutive groups of in / G. ValueError for sizes that do
    not fill words, and for a zero of 0 in version 1, which others read as 2^bits.
    """
    outputs, inputs = codes.shape
    if outputs * bits % 32 or inputs * bits % 32:
        raise ValueError(f"GPTQ packs {32 // bits} codes a word, and ({outputs}, {inputs}) does not divide by that")
    if version == 1 and bool((zeros == 0).any()):
        raise ValueError("version 1 of the GPTQ format cannot store a zero point of 0; write version 2")
    if g_idx is None:
        g_idx = torch.arange(inputs) // (inputs // zeros.shape[1])
    return {
        "qweight": words_of(codes, bits).t().contiguous(),
        "qzeros": words_of((zeros if version == 2 else zeros - 1).t().contiguous(), bits),
        "scales": scales.t().contiguous(),
        "g_idx": g_idx.to(torch.int32),
    }


def _read(tensor: TensorInfo, parts: Mapping[str, Tensor], zeros_of: Callable[[Tensor], Tensor]) -> GroupQuant:
    outputs, inputs = tensor.shape
    scheme = scheme_of(tensor)
    order = input_order(tensor, parts["g_idx"]) if "g_idx" in parts else None
    words = parts["qweight"].t()
    if order is None:
        codes = code_bytes(words, scheme.bits, inputs)
    else:
        codes = codes_of(words, scheme.bits, inputs)[:, order.long()]
        codes = pack_nibbles(codes) if scheme.bits == 4 else codes
    zeros = zeros_of(parts["qzeros"]).t().contiguous()
    scale = copied(parts["scales"].t())
    middle = 2 ** (scheme.bits - 1)
    # as the headers promised: a checkpoint's matrices are alike, whatever the zeros of one of them happen to be
    symmetric = scheme.scales.nbytes == scale.element_size() and bool((zeros == middle).all())
    return GroupQuant(
        (outputs, inputs),
        scheme.bits,
        scheme.group_size,
        codes,
        scale,
        zero=middle if symmetric else zeros,
        perm=order,
    )
