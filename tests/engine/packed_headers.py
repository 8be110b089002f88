"""Whole model folders whose matrices lie in codes, for tests of what is said of them.

Owns the choice of recipes by a short name, and gemv's shapes, which nothing here packs. The packing is tiny_packed's.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file

from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_packed import (
    Codes,
    Recipe,
    awq_gemm,
    coded,
    gptq_recipe,
    in_layers,
    int8_recipe,
    packed_recipe,
    write,
)


def _gemv(found: Codes) -> dict[str, torch.Tensor]:
    """The shapes of groups of 32 (their zeros padded to 4 words); the codes mean nothing."""
    outputs, inputs = found.codes.shape
    words = 4 * -(-inputs // 32 // 32)
    return {
        "qweight": torch.zeros(outputs, inputs // 8, dtype=torch.int32),
        "qzeros": torch.zeros(outputs, words, dtype=torch.int32),
        "scales": torch.ones(outputs, 8 * words, dtype=torch.float16),
    }


RECIPES = {
    "gemm": awq_gemm(),
    "gemv": Recipe(awq_gemm().settings | {"version": "gemv"}, 4, 32, False, _gemv),
    "v1": gptq_recipe(version=1),
    "v2": gptq_recipe(version=2),
    "asymmetric v1": gptq_recipe(version=1, symmetric=False),
    "ordered": gptq_recipe(version=1, act_order=True),
    "packed": packed_recipe(),
    "asymmetric packed": packed_recipe(symmetric=False),
    "int8": int8_recipe(),
}


def packed_checkpoint(
    folder: Path, name: str, *, plain: str = "", torch_dtype: str = "float16", **changes: Any
) -> Path:
    """The tiny Llama in fp16 with the matrices of its layers as the recipe `name` stores them, in `folder`.

    plain: matrices with this in their names stay in fp16. changes go over the recipe's settings.
    """
    recipe = RECIPES[name]
    with TemporaryDirectory() as place:
        source = tiny_llama_checkpoint(Path(place), dtype="F16")
        config = json.loads((source / "config.json").read_text()) | {"torch_dtype": torch_dtype}
        stored, _ = coded(
            load_file(source / "model.safetensors"),
            recipe,
            lambda tensor: in_layers(tensor) and not (plain and plain in tensor),
        )
        write(folder, source, stored, config | {"quantization_config": recipe.settings | changes})
    return folder
