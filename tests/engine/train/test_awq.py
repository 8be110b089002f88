"""AWQ for one matrix and for a layer: what changes nothing, and what must gain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.rotary import RotaryTables
from engine.train.awq import AwqOptions, awq_matrix, output_error, search_scales
from engine.train.forward import LayerForward
from engine.train.grid import round_to_nearest
from engine.train.layer import all_statistics
from engine.train.layer_awq import fold, folds_of, quantise_with_awq
from engine.train.source import Source
from tests.engine.tiny_families import VARIANTS, family_checkpoint
from tests.engine.train.test_gptq import correlated_inputs, error, matrix

SIZE = 32
DENSE = ["qwen2", "qwen3", "phi3", "granite", "olmo2", "gemma2", "gemma3"]


def layer_of(folder: Path, variant: str) -> tuple[LayerForward, dict[str, torch.Tensor], torch.Tensor]:
    source = Source(family_checkpoint(folder, variant))
    forward = LayerForward(source.config, 1, RotaryTables(source.config, 256, torch.float32, torch.device("cpu")))
    x = torch.randn(3, 24, source.config.hidden_size, generator=torch.Generator().manual_seed(5))
    return forward, source.layer(1), x


def test_without_scaling_and_clipping_it_is_rounding_to_nearest() -> None:
    x, weights = correlated_inputs(160), matrix()
    hessian, options = x.T @ x, AwqOptions(group_size=SIZE, steps=0, clip=False)
    tie = torch.arange(160)
    scale, share = search_scales([weights], x.abs().mean(0), hessian, options, tie, lambda: None)
    found, plain = awq_matrix(weights * scale, hessian, options), round_to_nearest(weights, 4, SIZE)
    assert share == 1
    assert torch.equal(found.codes, plain.codes)
    assert torch.equal(found.scale, plain.scale)
    assert torch.equal(found.zero, plain.zero)


def test_scales_lower_the_error_where_some_inputs_are_large() -> None:
    x, weights = correlated_inputs(160), matrix()
    hessian, options = x.T @ x, AwqOptions(group_size=SIZE)
    scale, share = search_scales([weights], x.abs().mean(0), hessian, options, torch.arange(160), lambda: None)
    assert share < 0.8
    unscaled = output_error([weights], torch.ones(160), hessian, options)
    assert output_error([weights], scale, hessian, options) == pytest.approx(share * unscaled)
    rounded = round_to_nearest(weights * scale, 4, SIZE).dequantised() / scale
    assert error(rounded, weights, hessian) == pytest.approx(share * unscaled, rel=1e-3)


def test_clipping_lowers_what_each_group_adds_to_the_error() -> None:
    x, weights = correlated_inputs(160), matrix().pow(3)
    hessian = x.T @ x
    blocks = torch.zeros_like(hessian)
    for first in range(0, 160, SIZE):
        part = slice(first, first + SIZE)
        blocks[part, part] = hessian[part, part]
    clipped = awq_matrix(weights, hessian, AwqOptions(group_size=SIZE)).dequantised()
    plain = round_to_nearest(weights, 4, SIZE).dequantised()
    assert error(clipped, weights, blocks) < 0.9 * error(plain, weights, blocks)


@pytest.mark.parametrize("variant", DENSE)
def test_folding_leaves_the_layers_function_as_it_was(variant: str, tmp_path: Path) -> None:
    forward, weights, x = layer_of(tmp_path, variant)
    before = forward(weights, x)
    folds = folds_of(forward)
    assert len(folds) == (4 if forward.config.norm_placement != "post" else 2)
    for index, one in enumerate(folds):
        channels = int(one.tie.max()) + 1
        scale = torch.rand(channels, generator=torch.Generator().manual_seed(index)) + 0.5
        fold(forward, weights, one, scale, torch.float16)
        assert torch.allclose(forward(weights, x), before, atol=2e-4, rtol=1e-3), one.place


@pytest.mark.parametrize("variant", ["qwen2", "phi3", "olmo2", "gemma3"])
def test_a_layer_comes_nearer_to_its_outputs_than_by_rounding(variant: str, tmp_path: Path) -> None:
    forward, weights, x = layer_of(tmp_path, variant)
    x = x * torch.logspace(-1, 1, x.shape[-1])
    expected = forward(weights, x)
    plain = {
        name: round_to_nearest(tensor, 4, 16).dequantised() if tensor.dim() == 2 else tensor
        for name, tensor in weights.items()
    }
    layer = quantise_with_awq(forward, dict(weights), x, AwqOptions(group_size=16), torch.float16, lambda: None)
    found = (forward(layer.weights(), x) - expected).square().mean()
    assert found < 0.95 * (forward(plain, x) - expected).square().mean()


def test_statistics_are_those_of_what_each_place_sees(tmp_path: Path) -> None:
    forward, weights, x = layer_of(tmp_path, "qwen3")
    steps: list[int] = []
    found = all_statistics(forward, weights, x, lambda: steps.append(1))
    normed = forward.attention_input(weights, x).flatten(0, 1)
    assert steps
    assert torch.allclose(found["qkv"].hessian, normed.T @ normed, rtol=1e-4, atol=1e-3)
    assert torch.allclose(found["qkv"].means, normed.abs().mean(0), rtol=1e-4)
    assert found["down"].hessian.shape == (forward.config.intermediate_size,) * 2
    assert set(DENSE) <= set(VARIANTS)
