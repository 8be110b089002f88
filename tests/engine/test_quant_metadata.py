"""What the headers of quantised checkpoints say: where configurations are found, and how matrices get their formats."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import CheckpointError, read_checkpoint
from engine.checkpoint.packed import quantization_notes
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.tiny_packed import (
    UP,
    Recipe,
    awq_gemm,
    configure,
    dtype_of,
    gptq_recipe,
    in_layers,
    int8_recipe,
    packed_recipe,
    packed_tiny,
    quantise,
)


def refused(folder: Path, finding: str) -> None:
    with pytest.raises(CheckpointError, match=finding) as caught:
        read_checkpoint(folder)
    assert str(folder) in str(caught.value)


def test_parts_keep_their_stored_names_and_bytes(tmp_path: Path) -> None:
    info = read_checkpoint(packed_tiny(tmp_path, awq_gemm()))
    tensor = info.tensors[f"{UP}.weight"]
    assert (tensor.dtype, tensor.shape) == ("AWQ_GEMM", (128, 64))
    assert [part.name for part in sorted(tensor.parts, key=lambda part: part.name)] == [
        f"{UP}.{kind}" for kind in ("qweight", "qzeros", "scales")
    ]
    assert tensor.nbytes == sum(part.nbytes for part in tensor.parts) == 64 * 16 * 4 + 2 * 16 * 4 + 2 * 128 * 2
    assert tensor.scheme is not None
    assert tensor.bytes_in_memory(2) == 64 * 128 // 2 + 128 * 2 * (2 + 1)
    assert info.quantization == "AWQ_GEMM"
    assert quantization_notes(info) == []


@pytest.mark.parametrize(
    ("recipe", "file", "content", "dtype"),
    [
        (awq_gemm, "quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}, "AWQ"),
        (gptq_recipe, "quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False}, "GPTQ"),
    ],
)
def test_a_configuration_beside_config_json(
    tmp_path: Path, recipe: Callable[[], Recipe], file: str, content: dict[str, Any], dtype: str
) -> None:
    folder = packed_tiny(tmp_path, recipe())
    configure(folder, None)
    refused(folder, "part of a matrix in codes, and neither config.json nor quant_config.json")
    (folder / file).write_text(json.dumps(content))
    assert dtype_of(read_checkpoint(folder)).startswith(dtype)
    (folder / file).write_text(json.dumps(content | {"group_size": 64, "q_group_size": 64}))
    refused(folder, "groups for .* inputs, that is 32 inputs each; the configuration says group_size 64")


def test_a_configuration_under_text_config(tmp_path: Path) -> None:
    recipe = awq_gemm()
    folder = packed_tiny(tmp_path, recipe)
    content = json.loads((folder / "config.json").read_text())
    content["text_config"] = {"quantization_config": content.pop("quantization_config")}
    (folder / "config.json").write_text(json.dumps(content))
    assert dtype_of(read_checkpoint(folder)) == "AWQ_GEMM"


def test_a_version_that_is_not_said_is_told_by_the_shapes(tmp_path: Path) -> None:
    folder = packed_tiny(tmp_path, awq_gemm(), version=None)
    assert dtype_of(read_checkpoint(folder)) == "AWQ_GEMM"


def test_bits_of_single_matrices(tmp_path: Path) -> None:
    """GPTQModel's `dynamic`: left out, other bits, other groups."""
    plain = tiny_llama_checkpoint(tmp_path / "plain")
    mixed = gptq_recipe(size=32)
    wide, narrow = gptq_recipe(8, size=64), mixed
    settings = mixed.settings | {
        "dynamic": {
            r"-:.*\.q_proj": {},
            r"+:.*\.down_proj$": {"bits": 8, "group_size": 64},
            f"{UP}": {"group_size": 64},
        }
    }

    def pack(found: Any) -> dict[str, torch.Tensor]:
        own = wide if found.codes.shape == (64, 128) else narrow
        return own.pack(found)

    down, _ = quantise(plain, tmp_path / "down", wide, lambda name: name.endswith("down_proj.weight"))
    up, _ = quantise(plain, tmp_path / "up", gptq_recipe(size=64), lambda name: name == f"{UP}.weight")
    rest, _ = quantise(
        plain,
        tmp_path / "rest",
        narrow,
        lambda name: in_layers(name) and "q_proj" not in name and "down_proj" not in name and name != f"{UP}.weight",
    )
    packed = {}
    for folder in (down, up, rest):
        packed |= {name: t for name, t in load_file(folder / "model.safetensors").items() if "proj.weight" not in name}
    whole = load_file(plain / "model.safetensors")
    packed |= {name: tensor for name, tensor in whole.items() if "q_proj" in name}
    save_file(packed, rest / "model.safetensors")
    configure(rest, settings)
    info = read_checkpoint(rest)

    def scheme(module: str) -> tuple[int, int]:
        found = info.tensors[f"model.layers.0.{module}.weight"].scheme
        assert found is not None
        return found.bits, found.group_size

    assert (scheme("mlp.down_proj"), scheme("mlp.up_proj"), scheme("mlp.gate_proj")) == ((8, 64), (4, 64), (4, 32))
    assert info.tensors["model.layers.0.self_attn.q_proj.weight"].scheme is None
    assert quantization_notes(info) == []
    others = {rule: own for rule, own in settings["dynamic"].items() if not rule.startswith("-:")}
    configure(rest, settings | {"dynamic": others})
    (note,) = quantization_notes(read_checkpoint(rest))
    assert (note.name, note.effective) == ("quantization", "mixed")
    assert "q_proj in 2 of 2 layers" in note.reason
    configure(rest, settings | {"dynamic": {}})
    refused(rest, r"down_proj.*the configuration says|up_proj.*the configuration says")
    configure(rest, settings | {"dynamic": {"-:.*": {}}})
    refused(rest, r"is stored in codes .*, yet the configuration's dynamic leaves it out by '-:\.\*'")


def groups_by_target(*entries: tuple[list[str], int]) -> dict[str, Any]:
    base = packed_recipe().settings["config_groups"]["group_0"]
    return {
        f"group_{index}": base | {"targets": targets, "weights": base["weights"] | {"num_bits": bits}}
        for index, (targets, bits) in enumerate(entries)
    }


@pytest.mark.parametrize("named", [["re:.*down_proj$"], [f"model.layers.{i}.mlp.down_proj" for i in range(2)]])
def test_the_more_exact_target_wins(tmp_path: Path, named: list[str]) -> None:
    plain = tiny_llama_checkpoint(tmp_path / "plain")
    four, _ = quantise(plain, tmp_path / "4", packed_recipe())
    eight, _ = quantise(plain, tmp_path / "8", packed_recipe(8), lambda name: name.endswith("down_proj.weight"))
    tensors = {name: t for name, t in load_file(four / "model.safetensors").items() if "down_proj" not in name}
    tensors |= {name: t for name, t in load_file(eight / "model.safetensors").items() if "down_proj" in name}
    save_file(tensors, four / "model.safetensors")
    settings = packed_recipe().settings
    configure(four, settings | {"config_groups": groups_by_target((["Linear"], 4), (named, 8))})
    schemes = [
        read_checkpoint(four).tensors[f"model.layers.1.mlp.{name}_proj.weight"].scheme for name in ("down", "up")
    ]
    assert [scheme.bits for scheme in schemes if scheme is not None] == [8, 4]
    configure(four, settings)
    refused(four, r"down_proj\.weight_packed has the shape .*4 bits of config group group_0 make")


@pytest.mark.parametrize(
    "entry", ["model.layers.0.self_attn.q_proj", "re:.*q_proj", "model.layers.0.self_attn.qkv_proj", "re:.*qkv_proj"]
)
def test_a_list_may_use_the_names_after_fusing(tmp_path: Path, entry: str) -> None:
    folder = packed_tiny(tmp_path, packed_recipe(), ignore=[entry])
    refused(folder, r"self_attn\.[qkv]_proj is stored in codes .*, yet the configuration's ignore list names it by")
    folder_settings = packed_recipe().settings | {"config_groups": groups_by_target((["re:.*gate_up_proj"], 4))}
    configure(folder, folder_settings)
    refused(folder, r"(down|[qkvo])_proj is stored in codes .*no config group targets it")


@pytest.mark.parametrize(
    ("symmetric", "stored", "declared", "read"),
    [
        (True, 1, "gptq", "GPTQ_V1"),
        (True, 2, "gptq_v2", "GPTQ_V2"),
        (True, 2, "gptq", "GPTQ_V2"),
        (True, 1, "gptq_v2", "GPTQ_V1"),
        (True, 2, None, "GPTQ_V2"),
        (False, 1, "gptq", "GPTQ_V1"),
        (False, 2, "gptq_v2", "GPTQ_V2"),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_zeros_tell_the_version(
    tmp_path: Path, bits: int, symmetric: bool, stored: int, declared: str | None, read: str
) -> None:
    folder = packed_tiny(tmp_path, gptq_recipe(bits, version=stored, symmetric=symmetric), checkpoint_format=declared)
    info = read_checkpoint(folder)
    assert dtype_of(info) == read
    notes = [(note.name, note.requested, note.effective) for note in quantization_notes(info)]
    truth = f"gptq{'_v2' if stored == 2 else ''}"
    assert notes == ([] if (declared or "gptq") == truth else [("GPTQ version", declared or "gptq", truth)])


def test_whole_words_where_gptqmodel_wrote_version_1(tmp_path: Path) -> None:
    folder = packed_tiny(tmp_path, gptq_recipe(version=1, symmetric=False), meta={"quantizer": ["gptqmodel:2.2.0"]})
    assert dtype_of(read_checkpoint(folder)) == "GPTQ_V1_WORDS"


def test_activations_and_cache_scales_are_told(tmp_path: Path) -> None:
    def scales(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)
        tensors["model.layers.0.self_attn.v_scale"] = torch.ones(1)
        tensors[f"{UP}.input_scale"] = torch.ones(1)

    info = read_checkpoint(
        packed_tiny(tmp_path, int8_recipe(), scales, kv_cache_scheme={"num_bits": 8, "type": "float"})
    )
    notes = {note.name: (note.requested, note.effective) for note in quantization_notes(info)}
    assert notes["input activations"] == ("8-bit int by each input", "not quantised")
    assert notes["KV cache of the checkpoint"] == ("8-bit float", "kv_cache_dtype")
    assert not any("scale" in name for name in info.tensors)


def test_a_plain_checkpoint_and_a_gguf_file_have_no_notes(tmp_path: Path) -> None:
    assert quantization_notes(read_checkpoint(tiny_llama_checkpoint(tmp_path / "plain"))) == []
    assert quantization_notes(read_checkpoint(tiny_llama_checkpoint(tmp_path, format="gguf", dtype="Q4_1"))) == []


def test_biases_of_zeros_that_makers_add(tmp_path: Path) -> None:
    """Older AutoGPTQ gives every module a bias; the architecture has none."""

    def biases(tensors: dict[str, torch.Tensor], value: float = 0.0) -> None:
        for name in [name for name in tensors if name.endswith("qweight")]:
            outputs = tensors[name].shape[1]
            tensors[f"{name.removesuffix('qweight')}bias"] = torch.full((outputs,), value, dtype=torch.float16)

    info = read_checkpoint(packed_tiny(tmp_path, gptq_recipe(), biases))
    assert not any(name.endswith("bias") for name in info.tensors)
    packed_tiny(tmp_path, gptq_recipe(), lambda tensors: biases(tensors, 0.5))
    refused(tmp_path, r"proj\.bias is not part of a llama of this configuration")


def test_experts_in_mixtrals_spelling(tmp_path: Path) -> None:
    """Lists use the stored names; the tensors leave under the other families' names."""
    plain = family_checkpoint(tmp_path / "plain", "mixtral")
    folder, _ = quantise(plain, tmp_path, packed_recipe())
    tensors = load_file(folder / "model.safetensors")
    spelling = {".mlp.": ".block_sparse_moe.", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    renamed = {}
    for name, tensor in tensors.items():
        for ours, theirs in spelling.items():
            name = name.replace(ours, theirs) if ".experts." in name or ours == ".mlp." else name
        renamed[name] = tensor
    save_file(renamed, folder / "model.safetensors")
    settings = packed_recipe().settings
    configure(folder, settings | {"ignore": ["re:.*block_sparse_moe.gate$", "lm_head"]})
    found = read_checkpoint(folder).tensors["model.layers.0.mlp.experts.1.down_proj.weight"]
    assert found.dtype == "CT_PACKED"
    assert {part.name.split("experts.1.")[1].split(".")[0] for part in found.parts} == {"w2"}
    configure(folder, settings | {"ignore": ["re:.*experts.1.w2"]})
    refused(folder, r"experts\.1\.w2 is stored in codes")


def test_settings_are_not_changed_by_reading(tmp_path: Path) -> None:
    info = read_checkpoint(packed_tiny(tmp_path, packed_recipe()))
    before = copy.deepcopy(info.metadata)
    quantization_notes(info)
    assert info.metadata == before


@pytest.mark.parametrize(
    ("recipe", "listed"),
    [(awq_gemm, {"modules_to_not_convert": ["o_proj"]}), (packed_recipe, {"ignore": ["re:.*o_proj$", "lm_head"]})],
)
def test_a_note_where_the_configuration_does_not_list_what_is_left_out(
    tmp_path: Path, recipe: Callable[[], Recipe], listed: dict[str, Any]
) -> None:
    plain = tiny_llama_checkpoint(tmp_path / "plain")
    folder, _ = quantise(plain, tmp_path, recipe(), lambda name: in_layers(name) and "o_proj" not in name)
    (note,) = quantization_notes(read_checkpoint(folder))
    assert (note.name, note.effective) == ("quantization", "mixed")
    assert "o_proj in 2 of 2 layers" in note.reason
    configure(folder, recipe().settings | listed)
    assert quantization_notes(read_checkpoint(folder)) == []
