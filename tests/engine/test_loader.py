"""Weights as they leave the loader: Hugging Face's names, layout and numbers, whatever the file."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import CheckpointError, read_checkpoint
from engine.models.loader import iter_numbers, iter_weights
from kernels.group_quant import GroupQuant
from tests.engine.tiny_checkpoint import tiny_config, tiny_llama_checkpoint, tiny_weights, write_safetensors

BIASED: dict[str, Any] = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
DEFAULT_MODEL_DIGEST = "e4f5b9de58b03c890f583fac60c1c1becb92330f4032ca33f74fd478b781294b"


def load(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Every tensor as numbers."""
    return dict(iter_numbers(read_checkpoint(path), dtype, lambda done, total: None))


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("overrides", [{}, BIASED, {"num_key_value_heads": 1, "head_dim": 32}])
@pytest.mark.parametrize("format_name", ["safetensors", "gguf"])
def test_weights_come_back(tmp_path: Path, format_name: str, overrides: dict[str, Any]) -> None:
    path = tiny_llama_checkpoint(tmp_path, format=format_name, seed=3, **overrides)
    assert_same(load(path), tiny_weights(tiny_config(**overrides), 3))


def test_equal_to_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_llama_checkpoint(tmp_path, **BIASED)
    assert_same(load(folder), AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("stored", ["F16", "BF16", "F32"])
def test_dtype_asked_for(tmp_path: Path, stored: str, dtype: torch.dtype) -> None:
    found = load(tiny_llama_checkpoint(tmp_path, dtype=stored), dtype)
    exact = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[stored]
    weights = tiny_weights(tiny_config(), 0)
    assert_same(found, {name: w.to(exact).to(torch.float32).to(dtype) for name, w in weights.items()})


@pytest.mark.parametrize(("stored", "error"), [("Q8_0", 0.01), ("Q4_0", 0.15), ("Q4_1", 0.1)])
def test_quantised_files(tmp_path: Path, stored: str, error: float) -> None:
    found = load(tiny_llama_checkpoint(tmp_path, format="gguf", dtype=stored))
    for name, weights in tiny_weights(tiny_config(), 0).items():
        assert (found[name] - weights).abs().max() < error, name


def test_data_that_begins_at_an_odd_byte(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    padding = b" " * ((-length) % 8 + 1)
    file.write_bytes(struct.pack("<Q", length + len(padding)) + raw[8 : 8 + length] + padding + raw[8 + length :])
    assert_same(load(folder), tiny_weights(tiny_config(), 0))


def test_progress_counts_bytes_to_the_end(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path, format="gguf", dtype="Q8_0"))
    seen: list[tuple[int, int]] = []
    for _ in iter_weights(info, torch.float32, lambda done, total: seen.append((done, total))):
        pass
    done = [entry[0] for entry in seen]
    assert done[0] == 0
    assert done[-1] == info.weights_bytes_on_disk
    assert done == sorted(done)
    assert {entry[1] for entry in seen} == {info.weights_bytes_on_disk}


@pytest.mark.parametrize("stored", ["F32", "BF16", "Q4_1", "Q8_0"])
def test_nothing_is_written_to_the_file(tmp_path: Path, stored: str) -> None:
    path = tiny_llama_checkpoint(tmp_path, format="gguf", dtype=stored)
    before = path.read_bytes()
    for _, weight in iter_weights(read_checkpoint(path), torch.float32, lambda done, total: None):
        for tensor in weight.tensors().values() if isinstance(weight, GroupQuant) else [weight]:
            tensor.zero_()
    assert path.read_bytes() == before


def test_a_stored_tied_head_must_equal_the_embedding(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    weights = tiny_weights(tiny_config(), 0)
    embedding = weights["model.embed_tokens.weight"]
    file = folder / "model.safetensors"
    write_safetensors(file, weights | {"lm_head.weight": embedding})
    assert_same(load(folder), weights)
    write_safetensors(file, weights | {"lm_head.weight": embedding + 1})
    with pytest.raises(CheckpointError, match=r"ties the output head to the embedding, yet lm_head\.weight is stored"):
        load(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")
    assert torch.equal(load(folder)["lm_head.weight"], embedding + 1)


def test_a_file_that_shrank_since_it_was_checked(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path, format="gguf")
    info = read_checkpoint(path)
    path.write_bytes(path.read_bytes()[:8192])
    with pytest.raises(CheckpointError, match="has the file changed since it was checked"):
        dict(iter_weights(info, torch.float32, lambda done, total: None))


def test_the_default_model(default_model_path: Path) -> None:
    """Bit for bit the weights that transformers 5.24 (with gguf 0.19) reads from the same file."""
    digests = sorted(
        f"{name} {hashlib.sha256(tensor.numpy().data).hexdigest()}" for name, tensor in load(default_model_path).items()
    )
    assert len(digests) == 272
    assert hashlib.sha256("\n".join(digests).encode()).hexdigest() == DEFAULT_MODEL_DIGEST
