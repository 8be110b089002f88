"""compressed-tensors' and transformers' own code at the other end: what they write is read here, and the reverse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from engine.checkpoint import read_checkpoint
from engine.models.loader import iter_numbers
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_checkpoint import tiny_config, tiny_llama_checkpoint, tiny_weights
from tests.engine.tiny_packed import (
    Codes,
    Recipe,
    in_layers,
    int8_recipe,
    packed_recipe,
    quantise,
    random_codes,
)
from tests.engine.transformers_oracle import greedy

PROMPT = [5, 17, 203, 9, 44, 101, 7, 300, 12, 64, 31]


def scheme_of(recipe: Recipe) -> QuantizationScheme:
    """Their own reading of our settings."""
    return QuantizationConfig(**recipe.settings).config_groups["group_0"]


def signed(values: torch.Tensor, bits: int) -> torch.Tensor:
    return (values.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)


def compressor(recipe: Recipe) -> Any:
    return BaseCompressor.get_value_from_registry(recipe.settings["format"])


RECIPES = {
    "W4A16": (packed_recipe, 32),
    "W4A16 asymmetric": (lambda: packed_recipe(symmetric=False), 32),
    "W4A16 channel": (lambda: packed_recipe(size=-1), 64),
    "W8A16": (lambda: packed_recipe(8), 32),
    "W8A16 asymmetric": (lambda: packed_recipe(8, symmetric=False), 32),
    "W8A8": (int8_recipe, 64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", RECIPES)
def test_what_we_pack_they_unpack(name: str, dtype: torch.dtype) -> None:
    recipe, size = RECIPES[name][0](), RECIPES[name][1]
    found = random_codes(40, 64, recipe.bits, size, symmetric=recipe.symmetric, dtype=dtype)
    theirs = compressor(recipe).decompress(recipe.pack(found), scheme_of(recipe))["weight"]
    assert theirs.dtype == dtype
    assert torch.equal(theirs, found.numbers().to(dtype))


def compressed(recipe: Recipe, weight: torch.Tensor, found: Codes) -> dict[str, torch.Tensor]:
    """Their packing of a weight that lies on the grid of `found`."""
    state = {"weight": weight, "weight_scale": found.scales}
    if not recipe.symmetric:
        state["weight_zero_point"] = signed(found.zeros, recipe.bits)
    stored: dict[str, torch.Tensor] = compressor(recipe).compress(state, scheme_of(recipe))
    return stored


@pytest.mark.parametrize("name", RECIPES)
def test_what_they_write_we_read(tmp_path: Path, name: str) -> None:
    """A whole checkpoint with their packing and their config.json, and the weights that they make of it."""
    recipe = RECIPES[name][0]()
    stored: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for index, (weight_name, weight) in enumerate(tiny_weights(tiny_config(), 0).items()):
        if not in_layers(weight_name) or weight.dim() != 2:
            stored[weight_name] = expected[weight_name] = weight
            continue
        size = weight.shape[1] if recipe.size == -1 else recipe.size
        found = random_codes(*weight.shape, recipe.bits, size, symmetric=recipe.symmetric, seed=index)
        parts = compressed(recipe, found.numbers(), found)
        unpacked = compressor(recipe).decompress(parts, scheme_of(recipe))["weight"]
        assert torch.equal(unpacked, found.numbers().to(unpacked.dtype))
        expected[weight_name] = unpacked
        stored |= {weight_name.removesuffix("weight") + kind: part for kind, part in parts.items()}
    save_file(stored, tmp_path / "model.safetensors")
    settings = json.loads(QuantizationConfig(**recipe.settings).model_dump_json())
    (tmp_path / "config.json").write_text(json.dumps(tiny_config() | {"quantization_config": settings}))
    weights = dict(iter_numbers(read_checkpoint(tmp_path), torch.float32, lambda done, total: None))
    assert weights.keys() == expected.keys()
    for weight_name, weight in expected.items():
        assert torch.equal(weights[weight_name].to(weight.dtype), weight), weight_name


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize(
    ("name", "dequantize"), [("W4A16", False), ("W4A16 asymmetric", True), ("W8A16", False), ("W8A8", True)]
)
def test_transformers_runs_what_we_write(tmp_path: Path, name: str, dequantize: bool) -> None:
    """Its own loading of compressed-tensors: the same logits but for its rounding to fp16, and the same greedy tokens.

    Packed codes with zero points load there only with `dequantize`: else it expects unpacked zero points (5.24.0).
    """
    codes, _ = quantise(tiny_llama_checkpoint(tmp_path / "plain"), tmp_path, RECIPES[name][0]())
    options = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if dequantize else {}
    model = AutoModelForCausalLM.from_pretrained(codes, dtype=torch.float32, **options)
    with torch.inference_mode():
        theirs = model(torch.tensor([PROMPT])).logits[0]
    ours = prompt_logits(load(codes, dtype="float32", max_num_seqs=16, max_model_len=64).runner, PROMPT)
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max()))
    assert ours.argmax(-1).tolist() == theirs.argmax(-1).tolist()
    assert greedy(model, PROMPT, 8)[0] == int(ours[-1].argmax())
