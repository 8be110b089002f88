"""Weights in codes, laid out once for the C++ products: panels of 16 outputs, as group_tiles.h describes them.

Owns the layout "tiles" and which weights can have it. Knows nothing of products.
Invariant: codes, scales, minima and zeros keep their bits and dtypes; only padding is added.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.group_quant import GroupQuant

TILES = "tiles"
PANEL = 16  # outputs
_SWAPPED_AT_ONCE = 1 << 17  # words: they stay in a cache
SCALE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class _CWeight(ctypes.Structure):
    """`GroupWeight` of group_tiles.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("codes", "scale", "minimum", "zero", "sub_scale", "sub_minimum", "perm")),
        *((name, c_int32) for name in ("outputs", "inputs", "bits", "group_size")),
        *((name, c_int32) for name in ("sub_groups", "constant_zero", "scale_type", "activation_bits")),
    )


@dataclass(frozen=True, slots=True)
class TiledQuant(GroupQuant):
    """A GroupQuant in layout "tiles".

    codes: uint8 [panels, padded inputs / 8, 16, 4] of 4 bits, [panels, padded inputs / 2, 16, 2] of 8, as group_tiles.h
    tells; scale, minimum [panels, S, 16]; zero, sub_scale, sub_minimum [panels, G, 16].
    """

    c_weight: _CWeight = field(init=False, repr=False, compare=False)  # points into the tensors above
    address: int = field(init=False, repr=False, compare=False)  # of c_weight

    def __post_init__(self) -> None:
        pointers = {name: tensor.data_ptr() for name, tensor in self.tensors().items()}
        weight = _CWeight(
            **pointers,
            outputs=self.shape[0],
            inputs=self.shape[1],
            bits=self.bits,
            group_size=_group_size(self),
            sub_groups=self.sub_groups,
            constant_zero=0 if isinstance(self.zero, Tensor) else self.zero,
            scale_type=SCALE_TYPES[self.scale.dtype],
            activation_bits=self.activation_bits,
        )
        object.__setattr__(self, "c_weight", weight)
        object.__setattr__(self, "address", ctypes.addressof(weight))


def serves(weight: GroupQuant) -> bool:
    """Whether the C++ products take such a weight: 4 or 8 bits, in groups of 16 or of a multiple of 32, or one a row.

    Any other stays in layout "rows", and the reference multiplies it.
    """
    group_size, inputs = weight.group_size, weight.shape[1]
    groups = group_size == 16 or group_size % 32 == 0 or group_size >= inputs
    types = weight.minimum is None or weight.minimum.dtype == weight.scale.dtype
    return groups and types and weight.bits in (4, 8) and weight.scale.dtype in SCALE_TYPES and weight.codes.is_cpu


def tiled(weight: GroupQuant) -> TiledQuant:
    """The same weight in layout "tiles"; one that `serves` takes."""
    changed = {
        name: tensor.contiguous() if name == "perm" else _panels(tensor).transpose(1, 2).contiguous()
        for name, tensor in weight.tensors().items()
        if name != "codes"
    }
    kept = {item.name: getattr(weight, item.name) for item in fields(GroupQuant)}
    return TiledQuant(**kept | changed | {"codes": _tiled_codes(weight), "layout": TILES})


def _group_size(weight: GroupQuant) -> int:
    """The group size as C++ wants it: one group a row is a multiple of 32, whatever the row is."""
    whole = -(-weight.shape[1] // 32) * 32
    return weight.group_size if weight.group_size == 16 else min(-(-weight.group_size // 32) * 32, whole)


def _panels(rows: Tensor) -> Tensor:
    """[N, ...] -> [panels, 16, ...], with zeros for outputs that are not there."""
    missing = -len(rows) % PANEL
    padded = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
    return padded.view(-1, PANEL, *rows.shape[1:])


def _tiled_codes(weight: GroupQuant) -> Tensor:
    """Words side by side in a row become words below each other in a panel; of 4 bits, with their codes reordered."""
    words_dtype, inputs = (torch.int32, 8) if weight.bits == 4 else (torch.int16, 2)
    tile = 16 if weight.group_size == 16 else 32
    missing = -weight.codes.shape[1] % (tile * weight.bits // 8)
    codes = (pad(weight.codes, (0, missing)) if missing else weight.codes).contiguous()
    words = _panels(codes.view(words_dtype)).transpose(1, 2).contiguous()
    if weight.bits == 4:
        flat = words.flatten()
        for first in range(0, flat.numel(), _SWAPPED_AT_ONCE):
            part = flat[first : first + _SWAPPED_AT_ONCE]
            _exchange(part, 0x00F000F0, 4)  # 0 1 2 3 4 5 6 7 -> 0 2 1 3 4 6 5 7
            _exchange(part, 0x0000FF00, 8)  # -> 0 2 4 6 1 3 5 7
    return words.view(torch.uint8).view(*words.shape, inputs * weight.bits // 8)


def _exchange(words: Tensor, mask: int, distance: int) -> None:
    """The bits of `mask` and those `distance` above them change places."""
    swap = words >> distance
    swap ^= words
    swap &= mask
    words ^= swap
    swap <<= distance
    words ^= swap
