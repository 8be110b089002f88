"""Whole tiny models from quantised checkpoints: the numbers and logits of the same checkpoint in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoint import read_checkpoint
from engine.models.loader import iter_numbers, iter_weights
from kernels.group_quant import GroupQuant
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.tiny_packed import (
    Recipe,
    awq_gemm,
    gptq_recipe,
    in_layers,
    int8_recipe,
    packed_recipe,
    quantise,
)

PROMPT = [5, 17, 203, 9, 44, 101, 7, 300, 12, 64, 31]
RECIPES: dict[str, Callable[[], Recipe]] = {
    "awq": awq_gemm,
    "awq, whole rows": lambda: awq_gemm(-1),
    "gptq v1": lambda: gptq_recipe(version=1),
    "gptq v2, asymmetric": lambda: gptq_recipe(symmetric=False),
    "gptq 8 bits": lambda: gptq_recipe(8),
    "gptq act order": lambda: gptq_recipe(act_order=True),
    "packed": packed_recipe,
    "packed, asymmetric": lambda: packed_recipe(symmetric=False),
    "packed, act order": lambda: packed_recipe(act_order=True),
    "packed 8 bits, whole rows": lambda: packed_recipe(8, -1),
    "int8": int8_recipe,
}
ONE_OF_EACH = ["awq", "gptq act order", "packed, asymmetric", "int8"]
BIASED: dict[str, Any] = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}


def logits(path: Path) -> torch.Tensor:
    loaded = load(path, dtype="float32", max_num_seqs=16, max_model_len=64)
    return prompt_logits(loaded.engine.executor, PROMPT)


def assert_alike(codes: Path, numbers: Path) -> None:
    """Every tensor in numbers equal to the bit, and logits but for the order of additions."""
    found = dict(iter_numbers(read_checkpoint(codes), torch.float32, lambda done, total: None))
    expected = dict(iter_numbers(read_checkpoint(numbers), torch.float32, lambda done, total: None))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    exact = logits(numbers)
    assert exact.std() > 0.1
    torch.testing.assert_close(logits(codes), exact, rtol=2e-4, atol=2e-4 * float(exact.abs().max()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_llama(tmp_path: Path, recipe: str) -> None:
    codes, numbers = quantise(tiny_llama_checkpoint(tmp_path / "plain"), tmp_path, RECIPES[recipe]())
    assert_alike(codes, numbers)


@pytest.mark.parametrize("recipe", RECIPES)
def test_codes_stay_codes_and_take_what_the_headers_say(tmp_path: Path, recipe: str) -> None:
    codes, _ = quantise(tiny_llama_checkpoint(tmp_path / "plain"), tmp_path, RECIPES[recipe]())
    info = read_checkpoint(codes)
    weights = dict(iter_weights(info, torch.bfloat16, lambda done, total: None))
    packed = {name: weight for name, weight in weights.items() if isinstance(weight, GroupQuant)}
    assert len(packed) == 7 * info.config.num_hidden_layers
    for name, weight in packed.items():
        assert weight.nbytes == info.tensors[name].bytes_in_memory(2), name
        assert weight.shape == info.tensors[name].shape
    assert info.weights_bytes_on_disk == sum(
        tensor.nbytes for tensor in load_file(codes / "model.safetensors").values()
    )


@pytest.mark.parametrize("recipe", ["awq", "gptq v1", "packed"])
def test_biases_and_an_untied_head_in_numbers(tmp_path: Path, recipe: str) -> None:
    plain = tiny_llama_checkpoint(tmp_path / "plain", **BIASED)
    assert_alike(*quantise(plain, tmp_path, RECIPES[recipe]()))


@pytest.mark.parametrize("recipe", ["awq", "gptq v1", "int8"])
def test_a_head_in_codes(tmp_path: Path, recipe: str) -> None:
    plain = tiny_llama_checkpoint(tmp_path / "plain", **BIASED)
    found = RECIPES[recipe]()
    found.settings.pop("ignore", None)
    codes, numbers = quantise(plain, tmp_path, found, lambda name: in_layers(name) or name == "lm_head.weight")
    assert read_checkpoint(codes).tensors["lm_head.weight"].scheme is not None
    assert_alike(codes, numbers)


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_in_codes(tmp_path: Path, tied: bool) -> None:
    plain = tiny_llama_checkpoint(tmp_path / "plain", tie_word_embeddings=tied)
    codes, numbers = quantise(plain, tmp_path, packed_recipe(8), lambda name: in_layers(name) or "embed_tokens" in name)
    assert read_checkpoint(codes).tensors["model.embed_tokens.weight"].scheme is not None
    assert_alike(codes, numbers)


@pytest.mark.parametrize(
    ("recipe", "left_out"), [("awq", "q_proj"), ("gptq act order", "k_proj"), ("packed", "down_proj"), ("awq", ".0.")]
)
def test_matrices_left_in_numbers(tmp_path: Path, recipe: str, left_out: str) -> None:
    plain = tiny_llama_checkpoint(tmp_path / "plain")
    codes, numbers = quantise(plain, tmp_path, RECIPES[recipe](), lambda name: in_layers(name) and left_out not in name)
    assert_alike(codes, numbers)


@pytest.mark.parametrize(
    ("family", "recipe"), [("mixtral", "awq"), ("mixtral", "gptq v1")] + [("qwen3_moe", name) for name in ONE_OF_EACH]
)
def test_experts(tmp_path: Path, family: str, recipe: str) -> None:
    codes, numbers = quantise(family_checkpoint(tmp_path / "plain", family), tmp_path, RECIPES[recipe]())
    assert sum(tensor.scheme is not None for tensor in read_checkpoint(codes).tensors.values()) > 4 * 3 * 5
    assert_alike(codes, numbers)


@pytest.mark.parametrize("recipe", ONE_OF_EACH)
def test_fused_projections(tmp_path: Path, recipe: str) -> None:
    codes, numbers = quantise(family_checkpoint(tmp_path / "plain", "phi3"), tmp_path, RECIPES[recipe]())
    assert read_checkpoint(codes).tensors["model.layers.0.self_attn.qkv_proj.weight"].scheme is not None
    assert_alike(codes, numbers)


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "gemma3"])
def test_other_families(tmp_path: Path, family: str) -> None:
    assert_alike(*quantise(family_checkpoint(tmp_path / "plain", family), tmp_path, awq_gemm()))
