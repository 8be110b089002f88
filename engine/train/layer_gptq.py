"""GPTQ for a whole layer: place by place, each on the outputs of the places before it in codes.

Owns the order within a layer. Knows nothing of files. Invariant: the calibration rows leave as the quantised layer's
outputs, so that the next layer is calibrated on what it will really see.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.train.forward import DOWN, GATE_UP, OUTPUT, QKV, LayerForward
from engine.train.gptq import GptqOptions, gptq
from engine.train.grid import QuantisedMatrix
from engine.train.layer import InputStatistics, QuantisedLayer, advance, in_dtype, rows_of


def quantise_with_gptq(
    forward: LayerForward,
    weights: dict[str, Tensor],
    x: Tensor,
    options: GptqOptions,
    dtype: torch.dtype,
    step: Callable[[], None],
) -> QuantisedLayer:
    """x [R, L, H], the residual before the layer, becomes that behind it. weights is changed. dtype: of norms, biases.

    step is called now and then, and may raise.
    """
    matrices: dict[str, QuantisedMatrix] = {}
    weights |= in_dtype(weights, dtype)

    def quantise(place: str, inputs_of: Callable[[Tensor], Tensor], rows_in: Tensor) -> None:
        statistics = InputStatistics()
        for rows in rows_of(rows_in):
            statistics.add(inputs_of(rows))
            step()
        for name in forward.names[place]:
            matrices[name] = gptq(weights[f"{name}.weight"], statistics.hessian, options)
            weights[f"{name}.weight"] = matrices[name].dequantised()
            step()

    quantise(QKV, lambda rows: forward.attention_input(weights, rows), x)
    attended = torch.cat([forward.attend(weights, forward.attention_input(weights, rows)) for rows in rows_of(x)])
    quantise(OUTPUT, lambda rows: rows, attended)
    for rows, mixed in zip(rows_of(x), rows_of(attended), strict=True):
        rows.copy_(forward.add_attention(weights, rows, mixed))
    del attended
    quantise(GATE_UP, lambda rows: forward.mlp_input(weights, rows), x)
    quantise(DOWN, lambda rows: forward.mlp_inner(weights, forward.mlp_input(weights, rows)), x)
    advance(x, lambda rows: forward.mlp(weights, rows))
    return QuantisedLayer(matrices, in_dtype(weights, dtype))
