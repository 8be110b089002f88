"""GGUF files of every family say the same as the safetensors checkpoints they were made from.

Owns the way from Hugging Face's names, row order and numbers to GGUF's, written down apart from the reader on purpose.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoint import CheckpointError, CheckpointInfo, UnsupportedCheckpointError, read_checkpoint
from engine.models.loader import iter_weights
from engine.vocab import load_vocab, write_tokenizer
from tests.engine.gguf_writer import StoredTensor, interleave_rotary_rows, store, write_gguf
from tests.engine.tiny_checkpoint import gguf_metadata, tiny_config
from tests.engine.tiny_families import LONG_FACTORS, SHORT_FACTORS, VARIANTS, family_checkpoint

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
}
KEYS: dict[str, dict[str, Any]] = {
    "gemma2": {
        "attention.sliding_window": 20,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        "attention.sliding_window": 20,
        "attention.sliding_window_pattern": 2,
        "rope.freq_base": 1000000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    },
    "granite": {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 4.0},
    "mixtral": {"expert_count": 5, "expert_used_count": 2, "rope.freq_base": 1000000.0},
    "qwen3_moe": {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 32},
    "phi3": {"attention.sliding_window": 20},
    "phi3 longrope, long": {"rope.scaling.original_context_length": 24},
    "smollm3": {"rope.freq_base": 2000000.0},
}
INTERLEAVED = ("granite", "mixtral", "smollm3")
ARCHITECTURES = {"gemma3_text": "gemma3", "mixtral": "llama", "qwen3_moe": "qwen3moe"}


def to_gguf(folder: Path, variant: str, **keys: Any) -> Path:
    """The checkpoint in `folder` as a GGUF file beside it."""
    model_type = VARIANTS[variant][0]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = gguf_tensors(load_file(folder / "model.safetensors"), model_type, config)
    if "longrope" in variant:
        for name, factors in (("long", LONG_FACTORS), ("short", SHORT_FACTORS)):
            tensors[f"rope_factors_{name}.weight"] = store(torch.tensor(factors))
    architecture, metadata = ARCHITECTURES.get(model_type, model_type), {}
    tiny = tiny_config(num_hidden_layers=4, intermediate_size=96, head_dim=config.get("head_dim") or 16)
    tiny["rms_norm_eps"] = config["rms_norm_eps"]
    for key, value in gguf_metadata(tiny).items():
        metadata[key.replace("llama.", f"{architecture}.")] = value
    metadata["general.architecture"] = architecture
    for key, value in (KEYS.get(variant, {}) | keys).items():
        metadata[f"{architecture}.{key}"] = value
    return write_gguf(folder / "model.gguf", metadata, tensors)


def gguf_tensors(weights: dict[str, torch.Tensor], model_type: str, config: dict[str, Any]) -> dict[str, StoredTensor]:
    tensors = {}
    for name, weight in stacked_experts(weights).items():
        stem, _, suffix = name.rpartition(".")
        if model_type in INTERLEAVED and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"]
            weight = interleave_rotary_rows(weight, heads)
        if "gemma" in model_type and stem.endswith("norm"):
            weight = weight + 1
        tensors[f"{gguf_name(stem, model_type)}.{suffix}"] = store(weight)
    return tensors


def stacked_experts(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The experts' matrices of a layer as one tensor each, in the experts' order."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, weight in weights.items():
        found.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(weight)
    return {name: torch.stack(parts) if ".experts." in name else parts[0] for name, parts in found.items()}


def gguf_name(stem: str, model_type: str) -> str:
    if stem in TOP:
        return TOP[stem]
    _, _, index, part = stem.split(".", 3)
    if part == "post_attention_layernorm":  # GGUF tells the norm after attention from the one before the MLP
        own = model_type in ("olmo2", "gemma2", "gemma3_text")
        return f"blk.{index}.{'post_attention_norm' if own else 'ffn_norm'}"
    return f"blk.{index}.{LAYER[part]}"


def weights_of(info: CheckpointInfo) -> dict[str, torch.Tensor]:
    return dict(iter_weights(info, torch.float32, lambda done, total: None))


@pytest.mark.parametrize(
    "variant",
    [
        "qwen2",
        "qwen3",
        "phi3",
        "phi3 longrope, long",
        "smollm3",
        "granite",
        "olmo2",
        "gemma2",
        "gemma3",
        "mixtral",
        "qwen3_moe",
    ],
)
def test_both_formats_say_the_same(variant: str, tmp_path: Path) -> None:
    folder = read_checkpoint(family_checkpoint(tmp_path / "tiny", variant))
    gguf = read_checkpoint(to_gguf(tmp_path / "tiny", variant))
    expected = folder.config
    if "gemma" in variant:  # GGUF holds no query_pre_attn_scalar: it follows from the model's size
        expected = replace(expected, attention_scale=16**-0.5)
    for name, value in asdict(expected).items():
        found = asdict(gguf.config)[name]
        if isinstance(value, dict):
            assert found.keys() == value.keys()
            for field, part in value.items():
                assert found[field] == pytest.approx(part) if not isinstance(part, str) else found[field] == part
        else:
            assert found == (pytest.approx(value) if isinstance(value, float) else value), name
    ours, theirs = weights_of(gguf), weights_of(folder)
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        if "gemma" in variant and name.endswith("norm.weight"):
            assert (ours[name] - weight).abs().max() < 1e-6, name
        else:
            assert torch.equal(ours[name], weight), name


def test_keys_of_another_family_are_refused(tmp_path: Path) -> None:
    folder = family_checkpoint(tmp_path / "tiny", "qwen3")
    with pytest.raises(UnsupportedCheckpointError, match=r"qwen3\.attention\.sliding_window is 8: only dense"):
        read_checkpoint(to_gguf(folder, "qwen3", **{"attention.sliding_window": 8}))


def write_parts(folder: Path, count: int = 3, **changes: Any) -> list[Path]:
    """A tiny checkpoint's GGUF in `count` parts; `changes` go over the last part's keys."""
    whole = family_checkpoint(folder, "qwen2")
    config = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    tensors = list(gguf_tensors(load_file(whole / "model.safetensors"), "qwen2", config).items())
    (whole / "config.json").unlink()
    (whole / "model.safetensors").unlink()
    keys = gguf_metadata(tiny_config(num_hidden_layers=4, intermediate_size=96))
    first = {key.replace("llama.", "qwen2."): value for key, value in keys.items()} | {"general.architecture": "qwen2"}
    paths = []
    for index in range(count):
        split = {"split.no": index, "split.count": count, "split.tensors.count": len(tensors)}
        metadata = (first if index == 0 else {}) | split | (changes if index == count - 1 else {})
        path = folder / f"tiny-{index + 1:05}-of-{count:05}.gguf"
        paths.append(write_gguf(path, metadata, dict(tensors[index::count])))
    return paths


def test_parts_of_a_split_file_are_joined(tmp_path: Path) -> None:
    paths = write_parts(tmp_path / "tiny")
    info = read_checkpoint(tmp_path / "tiny")
    assert info.path == paths[0]
    assert {tensor.file for tensor in info.tensors.values()} == set(paths)
    whole = weights_of(read_checkpoint(family_checkpoint(tmp_path / "whole", "qwen2")))
    found = weights_of(info)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], weight) for name, weight in whole.items())
    assert read_checkpoint(paths[1]).tensors == info.tensors, "any part stands for the whole"
    assert load_vocab(tmp_path / "tiny").size == 320
    write_tokenizer(info, tmp_path / "tiny")
    assert load_vocab(paths[0]).encode("the end") == load_vocab(tmp_path / "tiny").encode("the end")


@pytest.mark.parametrize(
    ("changes", "finding"),
    [({"split.no": 0}, "does not call itself part 2 of 3"), ({"split.count": 4}, "does not call itself part 2 of 3")],
)
def test_parts_that_do_not_belong_together(tmp_path: Path, changes: dict[str, Any], finding: str) -> None:
    write_parts(tmp_path / "tiny", **changes)
    with pytest.raises(CheckpointError, match=finding):
        read_checkpoint(tmp_path / "tiny")


def test_a_missing_or_renamed_part_is_told(tmp_path: Path) -> None:
    paths = write_parts(tmp_path / "tiny")
    paths[1].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(CheckpointError, match=r"parts are missing: tiny-00002-of-00003\.gguf; put all 3 in one folder"):
        read_checkpoint(paths[0])
    renamed = paths[0].rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match="name should end in -00001-of-00003"):
        read_checkpoint(renamed)
