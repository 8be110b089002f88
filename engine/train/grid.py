"""The grid of integer codes: where a group's weights can lie, and what rounding to it gives.

Owns scale, zero and codes of a matrix that is being quantised. Knows no calibration and no file format. Invariant: the
scale is the fp16 number that the checkpoint will hold, and codes and errors are those of that number; zeros are
integers among the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_SCALE = 2.0**-24  # of fp16


@dataclass(frozen=True, slots=True)
class Grid:
    """w is about scale * (code - zero). scale fp32 [..., G] of fp16 values; zero fp32 [..., G] of integers."""

    scale: Tensor
    zero: Tensor
    bits: int

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def encode(self, weights: Tensor) -> Tensor:
        """The nearest codes, fp32 in the shape of weights [..., G, g]."""
        codes = weights / self.scale.unsqueeze(-1) + self.zero.unsqueeze(-1)
        return codes.round_().clamp_(0, self.top)

    def decode(self, codes: Tensor) -> Tensor:
        """Weights of codes [..., G, g]."""
        return (codes - self.zero.unsqueeze(-1)) * self.scale.unsqueeze(-1)

    def nearest(self, weights: Tensor) -> Tensor:
        """weights [..., G, g] rounded to the grid."""
        return self.decode(self.encode(weights))


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """Codes of a matrix [N, K] with G = K / group_size groups a row.

    codes: uint8 [N, K], inputs in the order of the activations. scale fp16 [N, G], zero uint8 [N, G]. group_of: int32
    [K], the group of each input, where groups are not runs of neighbouring inputs (act order); else None.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    bits: int
    group_size: int
    group_of: Tensor | None = None

    def dequantised(self) -> Tensor:
        """fp32 [N, K]."""
        inputs = self.codes.shape[1]
        group_of = torch.arange(inputs) // self.group_size if self.group_of is None else self.group_of.long()
        steps = self.codes.to(torch.float32).sub_(self.zero.to(torch.float32)[:, group_of])
        return steps.mul_(self.scale.to(torch.float32)[:, group_of])


def grouped(weights: Tensor, group_size: int) -> Tensor:
    """[N, K] as [N, G, group_size]."""
    return weights.reshape(weights.shape[0], -1, group_size)


def fit_grid(low: Tensor, high: Tensor, bits: int, symmetric: bool) -> Grid:
    """The grid from `low` to `high`, each [..., G]; 0 is always on it. Symmetric: zero is the middle code."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    top = (1 << bits) - 1
    if symmetric:
        reach = torch.maximum(-low, high)
        scale = storable(reach * 2 / top)
        return Grid(scale, torch.full_like(scale, float((top + 1) // 2)), bits)
    scale = storable((high - low) / top)
    return Grid(scale, (-low / scale).round_().clamp_(0, top), bits)


def storable(scale: Tensor) -> Tensor:
    """The scale as fp16 will hold it, never 0. OverflowError beyond fp16's range."""
    rounded = scale.to(torch.float16).to(torch.float32).clamp_(min=SMALLEST_SCALE)
    if not bool(torch.isfinite(rounded).all()):
        raise OverflowError(f"a scale of {float(scale.max()):.3g} is beyond fp16's range")
    return rounded


def matrix_of(codes: Tensor, grid: Grid, group_size: int) -> QuantisedMatrix:
    """Codes fp32 [N, G, g] on the grid [N, G], as they will be stored."""
    return QuantisedMatrix(
        codes.flatten(1).to(torch.uint8),
        grid.scale.to(torch.float16),
        grid.zero.to(torch.uint8),
        grid.bits,
        group_size,
    )


def round_to_nearest(weights: Tensor, bits: int, group_size: int, symmetric: bool = False) -> QuantisedMatrix:
    """Each group's own range, each weight to the nearest code: what the methods are measured against."""
    parts = grouped(weights, group_size)
    grid = fit_grid(parts.amin(-1), parts.amax(-1), bits, symmetric)
    return matrix_of(grid.encode(parts), grid, group_size)


SHRINK_STEPS, SHRINK_MOST = 20, 0.5  # a searched range is at most so much narrower, in so many steps


def search_grid(parts: Tensor, importance: Tensor, bits: int, symmetric: bool = False) -> Grid:
    """The grid of each group whose rounding errors weigh least, among ranges from the group's own to half of it.

    parts [N, G, g]. importance: what an error e of a group costs: of each input its square by [G, g]; or e H e^T, by
    the group's own H of [G, g, g].
    """
    low, high = parts.amin(-1), parts.amax(-1)
    best = fit_grid(low, high, bits, symmetric)
    least = _cost(parts, best, importance)
    for step in range(1, SHRINK_STEPS + 1):
        kept = 1 - SHRINK_MOST * step / SHRINK_STEPS
        grid = fit_grid(low * kept, high * kept, bits, symmetric)
        cost = _cost(parts, grid, importance)
        better = cost < least
        least = torch.where(better, cost, least)
        best = Grid(torch.where(better, grid.scale, best.scale), torch.where(better, grid.zero, best.zero), bits)
    return best


def _cost(parts: Tensor, grid: Grid, importance: Tensor) -> Tensor:
    error = grid.nearest(parts).sub_(parts)
    if importance.dim() == 2:
        return error.square_().mul_(importance).sum(-1)
    by_group = error.transpose(0, 1)  # [G, N, g]
    return torch.bmm(by_group, importance).mul_(by_group).sum(-1).t()
