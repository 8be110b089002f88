"""Checkpoints that transformers has a class for and this engine refuses: each reason, by config.json and by load.

The first half needs no weights and no torch: it is what the app says before a download. The second half gives the
engine models that the table does not know, and what it measures at load must refuse them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import CheckpointError, UnsupportedCheckpointError, read_checkpoint
from engine.checkpoint.hf_config import read_config
from engine.checkpoint.hf_refusals import BY_NAME
from engine.checkpoint.hf_transformers import causal_language_models
from engine.loading import LoadError
from engine.models import hf_check, hf_fallback
from tests.engine.gguf_writer import write_gguf
from tests.engine.stepping import load
from tests.engine.tiny_families import SHAPES, random_checkpoint
from tests.engine.tiny_foreign import foreign_checkpoint

RECURRENT, LATENT, SINKS = "recurrent state", "latent vector", "attention sinks"


def read(architecture: str, model_type: str, **changes: Any) -> Any:
    values = SHAPES | {"architectures": [architecture], "model_type": model_type} | changes
    return read_config(Path("config.json"), values)


@pytest.mark.parametrize(
    ("architecture", "model_type", "finding"),
    [
        ("MambaForCausalLM", "mamba", RECURRENT),
        ("Mamba2ForCausalLM", "mamba2", RECURRENT),
        ("JambaForCausalLM", "jamba", RECURRENT),
        ("RwkvForCausalLM", "rwkv", RECURRENT),
        ("RecurrentGemmaForCausalLM", "recurrent_gemma", RECURRENT),
        ("FalconH1ForCausalLM", "falcon_h1", RECURRENT),
        ("Zamba2ForCausalLM", "zamba2", RECURRENT),
        ("Lfm2ForCausalLM", "lfm2", RECURRENT),
        ("Qwen3NextForCausalLM", "qwen3_next", RECURRENT),
        ("GraniteMoeHybridForCausalLM", "granitemoehybrid", RECURRENT),
        ("BambaForCausalLM", "bamba", RECURRENT),
        ("MiniMaxForCausalLM", "minimax", RECURRENT),
        ("DeepseekV2ForCausalLM", "deepseek_v2", LATENT),
        ("DeepseekV3ForCausalLM", "deepseek_v3", LATENT),
        ("MiniCPM3ForCausalLM", "minicpm3", LATENT),
        ("KimiK2ForCausalLM", "kimi_k2", LATENT),
        ("GptOssForCausalLM", "gpt_oss", SINKS),
        ("BloomForCausalLM", "bloom", "ALiBi"),
        ("MptForCausalLM", "mpt", "ALiBi"),
        ("Llama4ForCausalLM", "llama4_text", "fixed chunks"),
    ],
)
def test_by_name(architecture: str, model_type: str, finding: str) -> None:
    with pytest.raises(UnsupportedCheckpointError, match=f"{architecture} .*{finding}.*; run it with llama.cpp"):
        read(architecture, model_type)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, f"{RECURRENT}.*'linear_attention'"),
        ({"layer_types": ["conv", "full_attention"]}, f"{RECURRENT}.*'conv'"),
        ({"layers_block_type": ["mamba", "attention"]}, f"{RECURRENT}.*'mamba'"),
        ({"layer_types": ["chunked_attention"]}, "fixed chunks"),
        ({"mamba_d_state": 16}, f"{RECURRENT}.*mamba_d_state is 16"),
        ({"kv_lora_rank": 512}, f"{LATENT}.*kv_lora_rank is 512"),
        ({"add_swa_attention_sink_bias": True}, SINKS),
        ({"alibi": True}, "ALiBi"),
        ({"position_embedding_type": "alibi"}, "ALiBi"),
        ({"index_topk": 64}, "picks the keys"),
        ({"is_encoder_decoder": True}, "has an encoder"),
        ({"vision_config": {"depth": 2}}, "takes more than text"),
    ],
)
def test_by_a_trait_whatever_the_name(changes: dict[str, Any], finding: str) -> None:
    assert read("OlmoForCausalLM", "olmo").transformers_class == "OlmoForCausalLM"
    with pytest.raises(UnsupportedCheckpointError, match=finding):
        read("OlmoForCausalLM", "olmo", **changes)


def test_false_and_empty_traits_are_none() -> None:
    found = read("OlmoForCausalLM", "olmo", alibi=False, kv_lora_rank=None, index_topk=0, is_encoder_decoder=False)
    assert found.transformers_class == "OlmoForCausalLM"


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpointError, match=r"auto_map.*never run; use a GGUF file"):
        read("StrangeForCausalLM", "strange", auto_map={"AutoModelForCausalLM": "modeling_strange.StrangeForCausalLM"})
    path = foreign_checkpoint(tmp_path / "tiny", "gpt_neox")
    (path / "modeling_strange.py").write_text("raise SystemExit('run')")
    config = (path / "config.json").read_text()
    mapping = '{"auto_map": {"AutoModelForCausalLM": "modeling_strange.Strange"},'
    (path / "config.json").write_text(config.replace("{", mapping, 1))
    load(path, dtype="float32", max_model_len=64)  # transformers has the class: its own serves


def test_what_transformers_does_not_have_or_cannot_lend() -> None:
    with pytest.raises(UnsupportedCheckpointError, match="BertForMaskedLM is not supported; supported: Llama"):
        read("BertForMaskedLM", "bert")
    with pytest.raises(UnsupportedCheckpointError, match="FalconForCausalLM: its attention in transformers cannot be"):
        read("FalconForCausalLM", "falcon")
    with pytest.raises(CheckpointError, match="model_type is 'olmo', expected phi"):
        read("PhiForCausalLM", "olmo")


def test_a_stateful_class_that_no_table_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BY_NAME, "zamba")
    with pytest.raises(UnsupportedCheckpointError, match=RECURRENT):
        read("ZambaForCausalLM", "zamba")


def test_the_names_refused_are_names_that_transformers_knows() -> None:
    """A misspelt name would refuse nothing; the four that no release has come with code of their own."""
    known = {kind for types in causal_language_models().values() for kind in types}
    assert BY_NAME.keys() - known == {"kimi_k2", "phi4flash", "plamo2", "rwkv7"}


def test_missing_fields_are_named_with_their_other_spellings() -> None:
    with pytest.raises(CheckpointError, match=r"num_hidden_layers is None, expected .*n_layer"):
        read("OlmoForCausalLM", "olmo", num_hidden_layers=None)


def test_gguf_files_have_no_fallback(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {"general.architecture": "gptneox"}, {})
    with pytest.raises(UnsupportedCheckpointError, match="'gptneox' is not supported; supported in GGUF: llama"):
        read_checkpoint(path)


# --- what only a load can tell ---


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        load(path, dtype="float32", **({"max_model_len": 128} | options))
    assert caught.value.kind in ("unsupported", "bad_checkpoint")
    return str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "settings", "finding"),
    [
        ("gpt_oss", {"num_local_experts": 4, "head_dim": 16}, "layer 0: its attention has attention sinks"),
        ("llama4_text", {"attention_chunk_size": 20, "head_dim": 16, "num_local_experts": 2}, "it sees chunks"),
        ("diffllama", {}, "8 of its 4 layers call their attention"),
        ("doge", {}, "makes an attention mask of its own"),
        ("deepseek_v3", {"n_routed_experts": 4, "n_group": 1, "topk_group": 1}, "have the shapes"),
    ],
)
def test_a_model_that_no_table_names(
    model_type: str, settings: dict[str, Any], finding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.checkpoint.hf_generic.refusal", lambda fields, name: None)
    assert finding in refused(random_checkpoint(tmp_path / "tiny", model_type, SHAPES | settings))


def test_logits_that_are_not_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that the trace would get wrong: the comparison notices."""

    def wrong(*arguments: Any) -> list[hf_check.LayerTrace]:
        return [hf_check.LayerTrace(3 * layer.scale, 0, 0.0) for layer in hf_check.trace_layers(*arguments)]

    monkeypatch.setattr(hf_fallback, "trace_layers", wrong)
    assert "a test prompt's logits differ by" in refused(foreign_checkpoint(tmp_path / "tiny", "gpt_neox"))


def test_positions_that_a_model_ignores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention over a whole prompt counts from 0 by itself; the second half of a cut one does not."""
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model

    own = GPT2Model.forward

    def forward(self: Any, *arguments: Any, position_ids: Any = None, **named: Any) -> Any:
        return own(self, *arguments, **named)

    monkeypatch.setattr(GPT2Model, "forward", forward)
    assert "a test prompt's logits differ by" in refused(foreign_checkpoint(tmp_path / "tiny", "gpt2"))


def test_rotary_frequencies_that_change_with_the_batch(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, "factor": 8.0} | factors
    path = foreign_checkpoint(tmp_path / "tiny", "olmo", rope_parameters=rope)
    assert "load with max_model_len up to 64" in refused(path)
    load(path, dtype="float32", max_model_len=64)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda weights: weights.pop("gpt_neox.layers.1.mlp.dense_h_to_4h.weight"), "is missing; the checkpoint is"),
        (lambda weights: weights.update(surplus=torch.zeros(4, 4)), "surplus is not part of this model"),
        (lambda weights: weights.update({"embed_out.weight": torch.zeros(7, 64)}), "does not fit config.json"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_configuration(damage: Any, finding: str, tmp_path: Path) -> None:
    path = foreign_checkpoint(tmp_path / "tiny", "gpt_neox")
    weights = load_file(path / "model.safetensors")
    damage(weights)
    save_file(weights, path / "model.safetensors")
    assert finding in refused(path)
