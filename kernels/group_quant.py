"""A weight matrix in codes of 4 or 8 bits: the one form that every quantised format takes in memory.

Owns the meaning of the codes and scales, and what can be done with them row by row. Knows no file format (those are
engine.quant's) and no kernel.
Invariant: scales, zeros and minima are those of the checkpoint, unrounded; expanded to fp32 they give every weight with
at most one rounding, that of adding the minimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

ROWS = "rows"  # the layout that formats are read into; a backend may have its own (`kernels.ops.PrepareGroupQuant`)
_PIECE = 32  # activations at most that are rounded to 8 bits by one scale


@dataclass(frozen=True, slots=True)
class GroupQuant:
    """w[n, k] = scale[n, g] * code[n, k] + minimum[n, g], with g = k // group_size, in fp32.

    N outputs, K inputs, G = ceil(K / group_size) groups a row, S = ceil(G / sub_groups) scales a row. In layout "rows":

    codes:       uint8 [N, K] of 8 bits, or [N, ceil(K / 2)] of 4 bits, input 2 j in the low half of byte j
    scale:       fp16, bf16 or fp32 [N, S]
    minimum:     as scale, or None: then minimum[n, g] = -scale[n, g] * zero[n, g]
    zero:        an integer for all groups, or uint8 [N, G]; counts only where `minimum` is None
    sub_scale:   None (S = G), or int8 [N, G]: a group's scale is scale * sub_scale (GGUF's K formats)
    sub_minimum: None, or uint8 [N, G]: a group's minimum is minimum * sub_minimum; wants sub_scale and minimum
    perm:        None, or int32 [K]: input k of the codes is the activations' input perm[k] (GPTQ's act order)
    activation_bits: 16, or 8: products round bf16 activations to integers of 8 bits first (`rounded_activations`)

    The products scale * zero, scale * sub_scale and minimum * sub_minimum fit fp32 exactly where scales have 16 bits.
    """

    shape: tuple[int, int]  # N, K
    bits: int
    group_size: int
    codes: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    zero: int | Tensor = 0
    sub_scale: Tensor | None = None
    sub_minimum: Tensor | None = None
    sub_groups: int = 1
    perm: Tensor | None = None
    layout: str = ROWS
    activation_bits: int = 16

    @property
    def num_groups(self) -> int:
        """G."""
        return -(-self.shape[1] // self.group_size)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of it, by field name."""
        names = ("codes", "scale", "minimum", "zero", "sub_scale", "sub_minimum", "perm")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def to(self, device: torch.device) -> GroupQuant:
        """The same on another device."""
        return self.with_tensors({name: tensor.to(device) for name, tensor in self.tensors().items()})

    def with_tensors(self, tensors: Mapping[str, Tensor], outputs: int | None = None) -> GroupQuant:
        """The same with other tensors, by field name; `outputs` of them where their number changes."""
        changes: dict[str, Any] = dict(tensors)
        return replace(self, shape=(self.shape[0] if outputs is None else outputs, self.shape[1]), **changes)

    def expanded_scales(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Scale and minimum of every group, each [N, G] of `dtype` (layout "rows")."""
        self._require_rows()
        scale = self._per_group(self.scale, dtype)
        if self.sub_scale is not None:
            scale = scale * self.sub_scale.to(dtype)
        if self.minimum is None:
            zero = self.zero.to(dtype) if isinstance(self.zero, Tensor) else self.zero
            return scale, -(scale * zero)
        minimum = self._per_group(self.minimum, dtype)
        return scale, minimum * self.sub_minimum.to(dtype) if self.sub_minimum is not None else minimum

    def _per_group(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        wide = values.to(dtype)
        return wide.repeat_interleave(self.sub_groups, dim=1)[:, : self.num_groups] if self.sub_groups > 1 else wide

    def expanded_codes(self) -> Tensor:
        """uint8 [N, K], one code a byte (layout "rows")."""
        self._require_rows()
        if self.bits == 8:
            return self.codes
        return torch.stack((self.codes & 0x0F, self.codes >> 4), dim=2).flatten(1)[:, : self.shape[1]]

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights [N, K], computed in `dtype`, inputs in the order of the activations (layout "rows")."""
        scale, minimum = self.expanded_scales(dtype)
        inputs = self.shape[1]
        spread = torch.arange(inputs, device=self.codes.device) // self.group_size
        weights = self.expanded_codes().to(dtype).mul_(scale[:, spread]).add_(minimum[:, spread])
        if self.perm is None:
            return weights
        ordered = torch.empty_like(weights)
        ordered[:, self.perm.long()] = weights
        return ordered

    def with_activation_bits(self, bits: int) -> GroupQuant:
        """The same for activations of 16 or 8 bits."""
        return self if self.activation_bits == bits else replace(self, activation_bits=bits)

    def rounded_activations(self, x: Tensor) -> Tensor:
        """fp64 [T, K]: x [T, K] as products with `activation_bits` 8 take it: integers of at most 127 times m / 127.

        m is the largest magnitude of a piece, a group or 32 inputs of it in the codes' order; m / 127 and 127 / m are
        rounded to fp32. A piece of numbers below 2^-101 is zero.
        """
        place = torch.arange(self.shape[1], device=x.device)
        order = place if self.perm is None else self.perm.long()
        group = min(self.group_size, self.shape[1])
        piece = place // group * -(-group // _PIECE) + place % group // _PIECE
        ordered = x[:, order].double()
        largest = ordered.new_zeros(len(x), int(piece[-1]) + 1)
        largest.scatter_reduce_(1, piece.expand(len(x), -1), ordered.abs(), "amax")
        most = largest.float().clamp(min=2.0**-101)
        up, down = ((127 / most)[:, piece].double(), (most / 127)[:, piece].double())
        return torch.empty_like(ordered).index_copy_(1, order, torch.round(ordered * up) * down)

    def rows(self, index: slice | Tensor) -> GroupQuant:
        """The outputs that `index` (a slice, or row numbers int64) picks (layout "rows")."""
        self._require_rows()
        picked = {name: tensor[index] for name, tensor in self.tensors().items() if name != "perm"}
        return self.with_tensors(picked, len(picked["codes"]))

    def like(self, other: GroupQuant) -> bool:
        """Whether the two can be one matrix, one above the other."""
        own, others = self.tensors(), other.tensors()
        return (
            self._traits() == other._traits()
            and own.keys() == others.keys()
            and all(own[name].dtype == others[name].dtype for name in own)
            and (self.perm is other.perm or (self.perm is not None and torch.equal(self.perm, others["perm"])))
        )

    def _traits(self) -> tuple[object, ...]:
        zero = None if isinstance(self.zero, Tensor) else self.zero
        return self.shape[1], self.bits, self.group_size, self.sub_groups, self.layout, self.activation_bits, zero

    def _require_rows(self) -> None:
        if self.layout != ROWS:
            raise ValueError(f'this needs the layout "{ROWS}", and these codes are laid out as "{self.layout}"')


def stack_rows(parts: Sequence[GroupQuant]) -> GroupQuant:
    """One matrix of the parts' outputs, in order. ValueError for parts that are not alike."""
    first, *others = parts
    if not all(first.like(other) for other in others):
        raise ValueError("codes of different widths, groups, scales or input orders cannot be one matrix")
    if not others:
        return first
    joined = {name: torch.cat([part.tensors()[name] for part in parts]) for name in first.tensors() if name != "perm"}
    return first.with_tensors(joined, sum(part.shape[0] for part in parts))


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [N, K] of values below 16 -> uint8 [N, ceil(K / 2)], input 2 j in the low half of byte j."""
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | (codes[:, 1::2] << 4)
