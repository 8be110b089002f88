"""GPTQ (Frantar et al., arXiv 2210.17323): columns are rounded one by one, the rest makes up for each one's error.

Owns the algorithm for one matrix, given the Hessian of its inputs. Knows neither layers nor files. Invariant: where the
Hessian is diagonal nothing can make up for anything, and the result is the rounding to the chosen grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.train.grid import Grid, QuantisedMatrix, fit_grid, grouped, matrix_of, search_grid

BLOCK = 128  # columns whose errors are carried on together
DAMP = 0.01  # share of the mean diagonal
_MOST_DAMP = 1.0


@dataclass(frozen=True, slots=True)
class GptqOptions:
    """bits, group_size: of the codes. symmetric: zero is the middle code. act_order: columns of large activations are
    rounded first; their groups are then runs of that order, and the checkpoint holds the order (desc_act). Without it
    groups are runs of neighbours, and with `static_groups` their grids are fixed beforehand, so that the columns can
    still be taken in that order. damp: share of the Hessian's mean diagonal that is added to it. search: the grids are
    searched for the least error, rather than taken from each group's range.
    """

    bits: int = 4
    group_size: int = 128
    symmetric: bool = False
    act_order: bool = False
    static_groups: bool = True
    damp: float = DAMP
    search: bool = True


def gptq(weights: Tensor, hessian: Tensor, options: GptqOptions) -> QuantisedMatrix:
    """The codes of weights fp32 [N, K], given hessian fp32 [K, K] = X^T X of the inputs, up to a factor."""
    inputs, size = weights.shape[1], options.group_size
    diagonal = hessian.diagonal().clone()
    in_order = options.act_order or options.static_groups
    order = diagonal.argsort(descending=True, stable=True) if in_order else torch.arange(inputs)
    factor = inverse_factor(hessian[order][:, order], options.damp)
    remaining = weights[:, order].clone()
    importance = (diagonal[order] if options.act_order else diagonal).view(-1, size)
    if options.act_order or not options.static_groups:
        group_of = torch.arange(inputs) // size
        columns = _Columns(remaining, group_of, factor, None, importance, options)
    else:
        grid = _grid(grouped(weights, size), importance, options)
        columns = _Columns(remaining, order // size, factor, grid, importance, options)
    codes = columns.run()
    restored = torch.empty_like(codes)
    restored[:, order] = codes
    found = matrix_of(grouped(restored, size), columns.grid(), size)
    if not options.act_order:
        return found
    group_of = torch.empty(inputs, dtype=torch.int32)
    group_of[order] = (torch.arange(inputs) // size).to(torch.int32)
    return QuantisedMatrix(found.codes, found.scale, found.zero, found.bits, size, group_of)


def inverse_factor(hessian: Tensor, damp: float) -> Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse, fp32 [K, K].

    An input that is always 0 gets a Hessian of its own, so that it disturbs no other. Where rounding has cost the
    matrix its positive definiteness, the damping grows tenfold until it is regained. ValueError where it never is.
    """
    damped = hessian.to(torch.float64)
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1.0
    mean = float(diagonal.mean())
    while damp <= _MOST_DAMP:
        trial = damped + torch.eye(len(damped), dtype=torch.float64) * (damp * mean)
        lower, failed = torch.linalg.cholesky_ex(trial)
        if not int(failed):
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed):
                return factor.to(torch.float32)
        damp *= 10
    raise ValueError("the Hessian of the calibration inputs is not positive, whatever the damping; are they finite?")


def _grid(parts: Tensor, importance: Tensor, options: GptqOptions) -> Grid:
    if options.search:
        return search_grid(parts, importance, options.bits, options.symmetric)
    return fit_grid(parts.amin(-1), parts.amax(-1), options.bits, options.symmetric)


class _Columns:
    """The walk over the columns, in the order in which they are rounded."""

    def __init__(
        self,
        remaining: Tensor,
        group_of: Tensor,
        factor: Tensor,
        grid: Grid | None,
        importance: Tensor,
        options: GptqOptions,
    ) -> None:
        """remaining [N, K] is changed. grid [N, G]; None: each group's is fitted when its first column is reached."""
        self.remaining, self.factor, self.importance, self.options = remaining, factor, importance, options
        self.group_of = group_of.tolist()
        self.fixed = grid is not None
        num_groups = remaining.shape[1] // options.group_size
        empty = remaining.new_ones(remaining.shape[0], num_groups)
        self.scale, self.zero = (grid.scale, grid.zero) if grid is not None else (empty, empty.clone())

    def grid(self) -> Grid:
        """The grids of all groups."""
        return Grid(self.scale, self.zero, self.options.bits)

    def run(self) -> Tensor:
        """Codes fp32 [N, K]."""
        remaining, factor = self.remaining, self.factor
        codes = torch.empty_like(remaining)
        for first in range(0, remaining.shape[1], BLOCK):
            last = min(first + BLOCK, remaining.shape[1])
            block = remaining[:, first:last].clone()
            errors = torch.empty_like(block)
            for index in range(last - first):
                column = first + index
                if not self.fixed and column % self.options.group_size == 0:
                    self._fit(column, block, first, errors, index)
                codes[:, column], rounded = self._round(block[:, index], self.group_of[column])
                errors[:, index] = (block[:, index] - rounded) / factor[column, column]
                block[:, index + 1 :].addr_(errors[:, index], factor[column, column + 1 : last], alpha=-1)
            remaining[:, last:].addmm_(errors, factor[first:last, last:], alpha=-1)
        return codes

    def _fit(self, column: int, block: Tensor, first: int, errors: Tensor, done: int) -> None:
        """The grid of the group that begins at `column`, from its weights as they have become."""
        end = column + self.options.group_size
        inside = block[:, column - first : end - first]
        beyond = self.remaining[:, first + block.shape[1] : end]
        if beyond.shape[1]:
            carried = errors[:, :done] @ self.factor[first : first + done, first + block.shape[1] : end]
            inside = torch.cat((inside, beyond - carried), dim=1)
        group = column // self.options.group_size
        grid = _grid(inside.unsqueeze(1), self.importance[group : group + 1], self.options)
        self.scale[:, group : group + 1], self.zero[:, group : group + 1] = grid.scale, grid.zero

    def _round(self, weights: Tensor, group: int) -> tuple[Tensor, Tensor]:
        """Codes and values of one column [N]."""
        scale, zero = self.scale[:, group], self.zero[:, group]
        codes = (weights / scale + zero).round_().clamp_(0, (1 << self.options.bits) - 1)
        return codes, (codes - zero) * scale
