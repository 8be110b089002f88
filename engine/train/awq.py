"""AWQ (Lin et al., arXiv 2306.00978): input channels that see large activations are scaled up before rounding.

Owns the search of those scales and of the clipping, for matrices that share their input, by the exact error of their
outputs on the calibration inputs: tr(E H E^T) for weight errors E and H = X^T X. Knows neither layers nor files.
Invariant: without scaling and clipping the result is the rounding to nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.train.grid import QuantisedMatrix, fit_grid, grouped, matrix_of, search_grid

_FLOOR = 1e-4  # of an activation or weight mean, so that a dead channel gets a scale


@dataclass(frozen=True, slots=True)
class AwqOptions:
    """bits, group_size: of the codes. steps: exponents tried between 0 and 1; 0: no scaling. clip: ranges are
    searched.
    """

    bits: int = 4
    group_size: int = 128
    symmetric: bool = False
    steps: int = 20
    clip: bool = True


def search_scales(
    matrices: Sequence[Tensor],
    means: Tensor,
    hessian: Tensor,
    options: AwqOptions,
    tie: Tensor,
    step: Callable[[], None],
) -> tuple[Tensor, float]:
    """The scale of each channel, and the share of the unscaled rounding's error that is left under it.

    matrices [N, K] share their input. means fp32 [K]: mean absolute input. hessian fp32 [K, K]. tie int64 [K]: the
    channel of each input; inputs of a channel have one scale. Scales of 1 where none is better. step is called now and
    then, and may raise.
    """
    best = torch.ones(int(tie.max()) + 1)
    first = least = output_error(matrices, best[tie], hessian, options)
    for scale in _candidates(matrices, means, options, tie):
        error = output_error(matrices, scale[tie], hessian, options)
        if error < least:
            best, least = scale, error
        step()
    return best, least / first if first > 0 else 1.0


def _candidates(matrices: Sequence[Tensor], means: Tensor, options: AwqOptions, tie: Tensor) -> Iterator[Tensor]:
    """activation ^ a, and activation ^ a / weight ^ (1 - a), each for a in steps up to 1."""
    activation, weight = (
        _by_channel(values, tie).clamp(min=_FLOOR) for values in (means, _weight_means(matrices, options.group_size))
    )
    for index in range(1, options.steps + 1):
        exponent = index / options.steps
        scaled = activation.pow(exponent)
        yield _centred(scaled)
        yield _centred(scaled / weight.pow(1 - exponent))


def _by_channel(values: Tensor, tie: Tensor) -> Tensor:
    """Means of the values [K] over the inputs of each channel."""
    return torch.zeros(int(tie.max()) + 1).scatter_reduce_(0, tie, values, "mean", include_self=False)


def _centred(scale: Tensor) -> Tensor:
    return (scale / (scale.max() * scale.min()).sqrt()).clamp(1e-3, 1e3)


def _weight_means(matrices: Sequence[Tensor], group_size: int) -> Tensor:
    """Mean size of each input's weights [K], each taken relative to the largest of its group."""
    sizes = [grouped(matrix.abs(), group_size) for matrix in matrices]
    relative = [(size / size.amax(-1, keepdim=True).clamp(min=_FLOOR)).flatten(1) for size in sizes]
    return torch.cat(relative).mean(0)


def output_error(matrices: Sequence[Tensor], scale: Tensor, hessian: Tensor, options: AwqOptions) -> float:
    """tr(E H E^T) summed over the matrices, each rounded under `scale`."""
    total = 0.0
    for matrix in matrices:
        scaled = grouped(matrix * scale, options.group_size)
        grid = fit_grid(scaled.amin(-1), scaled.amax(-1), options.bits, options.symmetric)
        error = grid.nearest(scaled).flatten(1) / scale - matrix
        total += float(((error @ hessian) * error).sum())
    return total


def awq_matrix(weights: Tensor, hessian: Tensor, options: AwqOptions) -> QuantisedMatrix:
    """The codes of scaled weights [N, K]; hessian [K, K] that of the inputs after scaling."""
    parts = grouped(weights, options.group_size)
    if options.clip:
        grid = search_grid(parts, _blocks(hessian, options.group_size), options.bits, options.symmetric)
    else:
        grid = fit_grid(parts.amin(-1), parts.amax(-1), options.bits, options.symmetric)
    return matrix_of(grid.encode(parts), grid, options.group_size)


def _blocks(hessian: Tensor, size: int) -> Tensor:
    """The blocks [G, size, size] on the diagonal: what each group adds to the output by itself."""
    return torch.stack([hessian[first : first + size, first : first + size] for first in range(0, len(hessian), size)])
