"""Headers of sound checkpoints: both formats say the same of the same model, in all spellings of the configuration."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import CheckpointError, UnsupportedCheckpointError, expected_tensors, read_checkpoint
from engine.checkpoint.info import GROUP_SCHEMES, STORAGE_FORMATS
from engine.config import RopeScaling
from engine.quant import QUANT_FORMATS
from tests.engine.gguf_writer import store, write_gguf
from tests.engine.tiny_checkpoint import (
    CHAT_TEMPLATE,
    gguf_metadata,
    gguf_tensors,
    tiny_config,
    tiny_llama_checkpoint,
    tiny_weights,
    write_safetensors,
)


def write_tiny_gguf(
    path: Path, keys: dict[str, Any], *, dtype: str = "F32", extra: dict[str, torch.Tensor] | None = None
) -> Path:
    """A tiny GGUF with `keys` put over its key-values (None removes one) and `extra` tensors."""
    config = tiny_config()
    metadata = {key: value for key, value in (gguf_metadata(config) | keys).items() if value is not None}
    tensors = gguf_tensors(config, tiny_weights(config, 0), dtype)
    return write_gguf(path, metadata, tensors | {name: store(tensor) for name, tensor in (extra or {}).items()})


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | changes), encoding="utf-8")


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}])
def test_both_formats_say_the_same(tmp_path: Path, overrides: dict[str, Any]) -> None:
    folder = read_checkpoint(tiny_llama_checkpoint(tmp_path / "folder", **overrides))
    gguf = read_checkpoint(tiny_llama_checkpoint(tmp_path / "gguf", format="gguf", **overrides))
    assert (folder.format, gguf.format) == ("safetensors", "gguf")
    assert gguf.config.rms_norm_eps == pytest.approx(folder.config.rms_norm_eps)
    assert {n: t.shape for n, t in folder.tensors.items()} == {n: t.shape for n, t in gguf.tensors.items()}
    assert dict(expected_tensors(folder.config)) == {name: tensor.shape for name, tensor in folder.tensors.items()}
    assert folder.num_parameters == gguf.num_parameters
    assert folder.weights_bytes_on_disk == gguf.weights_bytes_on_disk == 4 * folder.num_parameters
    assert folder.chat_template == gguf.chat_template == CHAT_TEMPLATE
    for field in (
        "hidden_size",
        "head_dim",
        "num_key_value_heads",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
    ):
        assert getattr(folder.config, field) == getattr(gguf.config, field)
    assert folder.config.eos_token_ids == gguf.config.eos_token_ids == (2,)


def test_the_default_model(default_model_path: Path) -> None:
    info = read_checkpoint(default_model_path)
    assert info.num_parameters == 134_515_008
    assert info.quantization == "Q4_1"
    assert info.tensors["model.embed_tokens.weight"].dtype == "Q8_0"
    assert (info.config.num_hidden_layers, info.config.head_dim, info.config.rope_theta) == (30, 64, 100_000.0)
    assert info.config.tie_word_embeddings
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template


def test_torch_stays_out() -> None:
    code = "import sys, engine.checkpoint, engine.vocab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_storage_format_has_its_function() -> None:
    assert STORAGE_FORMATS.keys() <= QUANT_FORMATS.keys()
    assert GROUP_SCHEMES.keys() <= STORAGE_FORMATS.keys()


def test_a_folder_with_one_gguf_and_the_file_itself(tmp_path: Path) -> None:
    file = tiny_llama_checkpoint(tmp_path, format="gguf")
    assert read_checkpoint(tmp_path) == read_checkpoint(file)
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"several GGUF files \(other.gguf, tiny.gguf\)"):
        read_checkpoint(tmp_path)


def test_shards(tmp_path: Path) -> None:
    whole = read_checkpoint(tiny_llama_checkpoint(tmp_path / "whole"))
    folder = tiny_llama_checkpoint(tmp_path / "shards")
    (folder / "model.safetensors").unlink()
    weights = tiny_weights(tiny_config(), 0)
    names = list(weights)
    parts = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, members in parts.items():
        write_safetensors(folder / file, {name: weights[name] for name in members})
    index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
    edit_json(folder / "model.safetensors.index.json", **index)
    info = read_checkpoint(folder)
    assert info.num_parameters == whole.num_parameters
    assert {tensor.file.name for tensor in info.tensors.values()} == {"a.safetensors", "b.safetensors"}
    assert read_checkpoint(folder / "model.safetensors.index.json").tensors == info.tensors

    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors: this part of the model is missing"):
        read_checkpoint(folder)
    edit_json(folder / "model.safetensors.index.json", weight_map={"x": "../secret.safetensors"})
    with pytest.raises(CheckpointError, match="expected a file of this folder"):
        read_checkpoint(folder)


def test_a_safetensors_file_beside_its_configuration(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    assert read_checkpoint(folder / "model.safetensors").tensors == read_checkpoint(folder).tensors


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": 500000}, 500000.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, RopeScaling("linear", 2.0)),
        ({"rope_scaling": LLAMA3}, 10000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, None),
        (
            {"rope_parameters": LLAMA3 | {"rope_theta": 7.0}},
            7.0,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_rope_in_config_json(
    tmp_path: Path, changes: dict[str, Any], theta: float, scaling: RopeScaling | None
) -> None:
    folder = tiny_llama_checkpoint(tmp_path, **changes)
    config = read_checkpoint(folder).config
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_rope_in_gguf(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert read_checkpoint(write_tiny_gguf(tmp_path / "a.gguf", linear)).config.rope_scaling == RopeScaling(
        "linear", 4.0
    )
    none = {"llama.rope.scaling.type": "none"}
    assert read_checkpoint(write_tiny_gguf(tmp_path / "b.gguf", none)).config.rope_scaling is None
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    context = {"llama.rope.scaling.original_context_length": 128}
    found = read_checkpoint(write_tiny_gguf(tmp_path / "c.gguf", yarn | context)).config.rope_scaling
    assert found is not None
    assert (found.kind, found.factor, found.original_max_position_embeddings) == ("yarn", 4.0, 128)
    assert found.attention_factor == pytest.approx(0.1 * math.log(4.0) + 1)
    axial = {"llama.rope.scaling.type": "axial"}
    with pytest.raises(UnsupportedCheckpointError, match="rope scaling 'axial' is not supported"):
        read_checkpoint(write_tiny_gguf(tmp_path / "d.gguf", axial))


def test_llama3_factors_in_gguf_are_recognised_or_refused(tmp_path: Path) -> None:
    # Computed by transformers' rule for head_dim 16, base 10000, factor 8: 4 high pairs, 1 between, 3 low ones.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = LLAMA3 | {"rope_theta": 10000.0}
    config = LlamaConfig(head_dim=16, rope_parameters=parameters, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float32) / 16)
    factors = plain / scaled
    path = write_tiny_gguf(tmp_path / "a.gguf", {}, extra={"rope_freqs.weight": factors})
    scaling = read_checkpoint(path).config.rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.original_max_position_embeddings) == ("llama3", 8192)
    assert scaling.factor == pytest.approx(8.0)

    for wrong, finding in (
        (3.0, r"rope_freqs\.weight are not those of Llama 3\.1"),
        (0.0, "cannot divide a frequency"),
    ):
        factors[0] = wrong
        path = write_tiny_gguf(tmp_path / "b.gguf", {}, extra={"rope_freqs.weight": factors})
        with pytest.raises(CheckpointError, match=finding):
            read_checkpoint(path)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [({"eos_token_id": [2, 0]}, 1, (2, 0)), ({"eos_token_id": 0}, 1, (0,)), ({}, [1, 2], (1, 2)), ({}, None, ())],
)
def test_end_of_text_ids(tmp_path: Path, generation: dict[str, Any], config: Any, expected: tuple[int, ...]) -> None:
    folder = tiny_llama_checkpoint(tmp_path, eos_token_id=config)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    assert read_checkpoint(folder).config.eos_token_ids == expected


def test_head_dim_is_derived_or_explicit(tmp_path: Path) -> None:
    assert read_checkpoint(tiny_llama_checkpoint(tmp_path / "a", head_dim=32)).config.head_dim == 32
    folder = tiny_llama_checkpoint(tmp_path / "b")
    edit_json(folder / "config.json", head_dim=None)
    assert read_checkpoint(folder).config.head_dim == 16


def test_chat_template_forms(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    settings = folder / "tokenizer_config.json"
    edit_json(settings, chat_template=[{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}])
    assert read_checkpoint(folder).chat_template == "D"
    edit_json(settings, chat_template=[{"name": "only", "template": "O"}])
    assert read_checkpoint(folder).chat_template == "O"
    edit_json(settings, chat_template=[{"name": "a", "template": "A"}, {"name": "b", "template": "B"}])
    with pytest.raises(CheckpointError, match=r"no entry named default \(found: a, b\)"):
        read_checkpoint(folder)
    (folder / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert read_checkpoint(folder).chat_template == "J"
    (folder / "chat_template.jinja").unlink()
    settings.unlink()
    assert read_checkpoint(folder).chat_template is None


def test_a_stored_tied_head_counts_once(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    alone = read_checkpoint(folder).num_parameters
    weights = tiny_weights(tiny_config(), 0)
    write_safetensors(folder / "model.safetensors", weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    assert read_checkpoint(folder).num_parameters == alone


def test_dominant_format_is_that_of_the_matrices(tmp_path: Path) -> None:
    for dtype in ("Q4_0", "Q8_0", "F16"):
        path = tiny_llama_checkpoint(tmp_path / dtype, format="gguf", dtype=dtype)
        assert read_checkpoint(path).quantization == dtype
