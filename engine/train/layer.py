"""One layer on its way into codes: the statistics of its inputs, and what has become of it.

Owns the passes over the calibration rows, a few rows at a time, and the result of a layer. Knows neither method nor
file. Invariant: a result's `weights` are fp32 numbers that the checkpoint will hold, nothing finer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.train.forward import DOWN, GATE_UP, OUTPUT, QKV, LayerForward, Weights
from engine.train.grid import QuantisedMatrix

ROWS_AT_ONCE = 8


class InputStatistics:
    """What a place's matrices see: X^T X [K, K] and mean |x| [K], both over all tokens."""

    def __init__(self) -> None:
        self.hessian = torch.zeros(0)
        self._sizes = torch.zeros(0)
        self._tokens = 0

    def add(self, inputs: Tensor) -> None:
        """inputs [B, L, K]."""
        flat = inputs.flatten(0, 1)
        if not self._tokens:
            self.hessian = flat.new_zeros(flat.shape[1], flat.shape[1])
            self._sizes = flat.new_zeros(flat.shape[1])
        self.hessian.addmm_(flat.t(), flat)
        self._sizes += flat.abs().sum(0)
        self._tokens += len(flat)

    @property
    def means(self) -> Tensor:
        """Mean absolute input [K]."""
        return self._sizes / self._tokens


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """matrices: codes by module name. others: norms and biases by tensor name, fp32 of what the checkpoint holds."""

    matrices: Mapping[str, QuantisedMatrix]
    others: Mapping[str, Tensor]

    def weights(self) -> dict[str, Tensor]:
        """Every tensor in fp32, for `LayerForward`."""
        expanded = {f"{name}.weight": matrix.dequantised() for name, matrix in self.matrices.items()}
        return expanded | dict(self.others)


def rows_of(x: Tensor) -> Iterator[Tensor]:
    """x [R, L, H], a few rows at a time: views."""
    return iter(torch.split(x, ROWS_AT_ONCE))


def advance(x: Tensor, step: Callable[[Tensor], Tensor]) -> None:
    """x = step(x), in place, a few rows at a time."""
    for rows in rows_of(x):
        rows.copy_(step(rows))


def all_statistics(
    forward: LayerForward, weights: Weights, x: Tensor, step: Callable[[], None]
) -> dict[str, InputStatistics]:
    """The statistics of all four places, from one pass over x [R, L, H], which is left as it is."""
    found = {place: InputStatistics() for place in (QKV, OUTPUT, GATE_UP, DOWN)}
    for rows in rows_of(x):
        normed = forward.attention_input(weights, rows)
        found[QKV].add(normed)
        attended = forward.attend(weights, normed)
        found[OUTPUT].add(attended)
        between = forward.add_attention(weights, rows, attended)
        normed = forward.mlp_input(weights, between)
        found[GATE_UP].add(normed)
        found[DOWN].add(forward.mlp_inner(weights, normed))
        step()
    return found


def in_dtype(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The vectors among a layer's tensors as `dtype` will hold them, in fp32."""
    return {name: tensor.to(dtype).to(torch.float32) for name, tensor in tensors.items() if tensor.dim() == 1}
