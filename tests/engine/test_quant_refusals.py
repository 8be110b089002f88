"""Quantised checkpoints that are refused, each before a weight is read: methods, nonsense, contradictions, damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import CheckpointError, UnsupportedCheckpointError, read_checkpoint
from engine.checkpoint.packed import PACKED_METHODS
from engine.quant import gptq
from tests.engine.tiny_checkpoint import tiny_config, tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.tiny_foreign import foreign_checkpoint
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

Edit = Callable[[dict[str, torch.Tensor]], None]


def refused(folder: Path, finding: str, kind: type[CheckpointError] = CheckpointError) -> None:
    with pytest.raises(kind, match=finding) as caught:
        read_checkpoint(folder)
    assert str(folder) in str(caught.value)


# --- refused: methods and layouts ---

FP8 = {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}
NVFP4 = {"weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "targets": []}
INT3 = {"weights": {"num_bits": 3, "group_size": 32}, "targets": ["Linear"]}
INT4 = {"weights": {"num_bits": 4, "group_size": 32}, "targets": ["Linear"]}
BLOCKS = {"weights": {"num_bits": 8, "strategy": "block"}, "targets": ["Linear"]}


@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes.*4-bit floats.*Choose such a version"),
        ({"load_in_8bit": True}, "quantised with bitsandbytes"),
        ({"quant_method": "fp8"}, r"quantised with fp8 \(8-bit floats\)"),
        ({"quant_method": "mxfp4"}, "quantised with mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quantised with modelopt"),
        ({"quant_method": "hqq"}, "quantised with hqq"),
        ({"quant_method": "exl2"}, "quantised with exl2"),
        ({"quant_method": "exl3"}, "quantised with exl3"),
        ({"quant_method": "quanto"}, "quantised with quanto"),
        ({"quant_method": "aqlm"}, r"quantised with aqlm \(codebooks\)"),
        ({"quant_method": "marlin"}, "quantised with marlin"),
        ({"quant_method": "auto-round"}, "quantised with auto-round"),
        ({"quant_method": "tomorrow's"}, "quantised with tomorrow's are not supported; supported are awq, gptq, comp"),
        ({"quant_method": "awq", "bits": 3}, "AWQ with 3 bits is not supported"),
        ({"quant_method": "awq", "version": "marlin"}, "AWQ's layout 'marlin' is not supported; supported are gemm"),
        ({"quant_method": "awq", "format": "exllama"}, "AWQ's layout 'exllama'"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "layout 'marlin' are not supported"),
        ({"quant_method": "gptq", "is_marlin_format": True}, "layout 'marlin' are not supported"),
        ({"quant_method": "gptq", "format": "bitblas"}, "layout 'bitblas' are not supported"),
        ({"quant_method": "gptq", "pack_dtype": "int16"}, "packed into 'int16' is not supported"),
        ({"quant_method": "gptq", "adapter": {"name": "lora"}}, "GPTQ with an adapter"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, "has 3-bit GPTQ codes; supported are 4 and 8"),
        ({"quant_method": "gptq", "bits": 2, "group_size": 32}, "has 2-bit GPTQ codes; supported are 4 and 8"),
    ],
)
def test_a_method_that_is_not_read(tmp_path: Path, settings: dict[str, Any], finding: str) -> None:
    folder = packed_tiny(tmp_path, gptq_recipe())
    configure(folder, settings)
    refused(folder, finding, UnsupportedCheckpointError)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"format": "float-quantized", "config_groups": {"g": FP8}}, "'?float-quantized.* with 8-bit float weights"),
        ({"format": "naive-quantized", "config_groups": {"g": FP8}}, "naive-quantized with 8-bit float weights"),
        ({"format": "nvfp4-pack-quantized", "config_groups": {"g": NVFP4}}, "nvfp4-pack-quantized with 4-bit float"),
        ({"format": "marlin-24"}, "marlin-24 with 4-bit int weights"),
        ({"format": "mixed-precision"}, "mixed-precision with 4-bit int"),
        ({"config_groups": {"g": INT3}}, "pack-quantized with 3-bit integers.*choose a W4A16"),
        ({"format": "int-quantized", "config_groups": {"g": INT4}}, "int-quantized with 4-bit integers"),
        ({"config_groups": {"g": BLOCKS}}, "strategy 'block' of compressed-tensors is not supported"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config .* changes how the weights are used"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ],
)
def test_compressed_tensors_that_are_not_read(tmp_path: Path, changes: dict[str, Any], finding: str) -> None:
    refused(packed_tiny(tmp_path, packed_recipe(), **changes), finding, UnsupportedCheckpointError)


def test_harmless_fields_are_no_obstacle(tmp_path: Path) -> None:
    folder = packed_tiny(
        tmp_path, packed_recipe(), transform_config={}, sparsity_config={"format": "dense"}, version="0.12"
    )
    assert dtype_of(read_checkpoint(folder)) == "CT_PACKED"


@pytest.mark.parametrize("method", PACKED_METHODS)
def test_a_model_that_transformers_runs(tmp_path: Path, method: str) -> None:
    folder = foreign_checkpoint(tmp_path / "tiny", "gpt_neox")
    configure(folder, {"quant_method": method, "bits": 4})
    refused(
        folder, f"GPTNeoXForCausalLM runs through transformers here .*{method} run only in", UnsupportedCheckpointError
    )


# --- refused: configuration and tensors that do not belong together ---


@pytest.mark.parametrize("method", PACKED_METHODS)
def test_a_method_that_no_tensor_has(tmp_path: Path, method: str) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    settings = packed_recipe().settings if method == "compressed-tensors" else {"quant_method": method, "bits": 4}
    configure(folder, settings)
    refused(folder, f"quantised with {method}, and none is stored so")


@pytest.mark.parametrize(
    ("stored", "declared", "finding"),
    [
        (gptq_recipe, awq_gemm, "shapes of none of AWQ's layouts: .*they look like GPTQ's"),
        (awq_gemm, gptq_recipe, "does not have GPTQ's shapes: .*they look like AWQ's"),
        (awq_gemm, packed_recipe, "none is stored so"),
        (packed_recipe, awq_gemm, "none is stored so"),
        (packed_recipe, int8_recipe, "weight is missing beside"),
        (int8_recipe, packed_recipe, "weight_packed is missing beside"),
        (int8_recipe, gptq_recipe, "qweight is missing beside weight"),
        (packed_recipe, lambda: packed_recipe(symmetric=False), "weight_zero_point is missing beside"),
        (lambda: packed_recipe(symmetric=False), packed_recipe, "is symmetric, and has none"),
        (packed_recipe, lambda: packed_recipe(act_order=True), "weight_g_idx is missing beside"),
        (packed_recipe, lambda: packed_recipe(size=64), "that is 32 inputs each; .* group_size 64"),
        (packed_recipe, lambda: packed_recipe(size=48), "inputs, which do not divide by the group size 48"),
        (packed_recipe, lambda: packed_recipe(size=-1), r"has the shape \(64, 4\); the strategy channel"),
        (lambda: packed_recipe(size=-1), packed_recipe, "has 1 groups for 128 inputs"),
        (packed_recipe, lambda: packed_recipe(8), "8 bits of config group group_0 make"),
        (lambda: packed_recipe(8), packed_recipe, "4 bits of config group group_0 make"),
        (gptq_recipe, lambda: gptq_recipe(8), "that is 4 bits each; the configuration says 8"),
        (lambda: gptq_recipe(8), gptq_recipe, "that is 8 bits each; the configuration says 4"),
        (gptq_recipe, lambda: gptq_recipe(size=64), "that is 32 inputs each; the configuration says group_size 64"),
        (gptq_recipe, lambda: gptq_recipe(size=-1), "that is 32 inputs each; the configuration says group_size -1"),
        (gptq_recipe, lambda: gptq_recipe(size=48), "which do not divide by the group size 48"),
        (awq_gemm, lambda: awq_gemm(64), "that is 32 inputs each; the configuration says group_size 64"),
        (awq_gemm, lambda: awq_gemm(128), "that is 32 inputs each; the configuration says group_size 128"),
    ],
)
def test_another_format_than_the_tensors_have(
    tmp_path: Path, stored: Callable[[], Recipe], declared: Callable[[], Recipe], finding: str
) -> None:
    folder = packed_tiny(tmp_path, stored())
    configure(folder, declared().settings)
    refused(folder, finding)


def test_awq_in_another_layout_than_the_version_says(tmp_path: Path) -> None:
    def to_gemv(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("qweight")]:
            module = name.removesuffix("qweight")
            outputs, inputs = tensors[f"{module}scales"].shape[1], tensors[name].shape[0]
            tensors[name] = torch.zeros(outputs, inputs // 8, dtype=torch.int32)
            tensors[f"{module}qzeros"] = torch.zeros(outputs, 4, dtype=torch.int32)
            tensors[f"{module}scales"] = torch.zeros(outputs, 32, dtype=torch.float16)

    folder = packed_tiny(tmp_path, awq_gemm(), to_gemv)
    refused(folder, "is laid out as gemv .*, and the configuration says gemm; set version to gemv")
    configure(folder, awq_gemm().settings | {"version": "gemv"})
    assert dtype_of(read_checkpoint(folder)) == "AWQ_GEMV"
    configure(folder, awq_gemm().settings | {"version": "gemv", "group_size": 64})
    refused(folder, "has room for 32 groups; .* by the configuration's group_size 64 make [12], stored in 16")
    configure(folder, awq_gemm().settings | {"version": "gemv_fast"})
    refused(folder, "is laid out as gemv .*, and the configuration says gemv_fast")


@pytest.mark.parametrize("kind", ["qweight", "qzeros", "scales"])
@pytest.mark.parametrize("recipe", [awq_gemm, gptq_recipe])
def test_a_missing_part(tmp_path: Path, recipe: Callable[[], Recipe], kind: str) -> None:
    folder = packed_tiny(tmp_path, recipe(), lambda tensors: tensors.__delitem__(f"{UP}.{kind}"))
    refused(folder, rf"{UP}\.{kind} is missing beside")


@pytest.mark.parametrize("kind", ["weight_packed", "weight_scale", "weight_shape"])
def test_a_missing_part_of_compressed_tensors(tmp_path: Path, kind: str) -> None:
    folder = packed_tiny(tmp_path, packed_recipe(), lambda tensors: tensors.__delitem__(f"{UP}.{kind}"))
    refused(folder, rf"{UP}\.{kind} is missing beside")


def test_int8_without_its_scale(tmp_path: Path) -> None:
    refused(
        packed_tiny(tmp_path, int8_recipe(), lambda tensors: tensors.__delitem__(f"{UP}.weight_scale")),
        "weight_scale is missing",
    )


def replaced(name: str, tensor: torch.Tensor) -> Edit:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{UP}.{name}"] = tensor

    return edit


INTS = torch.int32


@pytest.mark.parametrize(
    ("recipe", "edit", "finding"),
    [
        (awq_gemm, replaced("scales", torch.ones(2, 128, dtype=INTS)), "scales is stored as I32, expected F16 or"),
        (awq_gemm, replaced("qweight", torch.ones(64, 16)), "qweight is stored as F32, expected I32"),
        (awq_gemm, replaced("qweight", torch.ones(64, 15, dtype=INTS)), "shapes of none of AWQ's layouts: .*64, 15"),
        (awq_gemm, replaced("scales", torch.ones(2, 124).half()), "shapes of none of AWQ's layouts: .*2, 124"),
        (awq_gemm, replaced("qweight", torch.ones(64, dtype=INTS)), r"has the shape \(64,\), expected 2 dimensions"),
        (awq_gemm, replaced("qweight", torch.ones(60, 16, dtype=INTS)), "60 inputs, which do not divide by"),
        (awq_gemm, replaced("weight", torch.ones(128, 64)), "is stored twice, as weight and in codes"),
        (gptq_recipe, replaced("g_idx", torch.zeros(60, dtype=INTS)), "g_idx has 60 inputs, and qweight .* holds 64"),
        (gptq_recipe, replaced("g_idx", torch.zeros(64)), "g_idx is stored as F32, expected I32 or I64"),
        (gptq_recipe, replaced("qzeros", torch.ones(2, 15, dtype=INTS)), "qzeros has 15 words for 128 outputs"),
        (gptq_recipe, replaced("qzeros", torch.ones(3, 16, dtype=INTS)), "does not have GPTQ's shapes"),
        (packed_recipe, replaced("weight_shape", torch.tensor([128, 0])), r"weight_shape holds \[128, 0\]"),
        (packed_recipe, replaced("weight_shape", torch.tensor([128, 96])), r"weight_shape \(128, 96\) and the 4 bits"),
        (packed_recipe, replaced("weight_shape", torch.tensor([128])), "weight_shape holds"),
        (packed_recipe, replaced("weight_scale", torch.ones(64, 2).half()), r"expected \(128, groups\)"),
        (int8_recipe, replaced("weight_scale", torch.ones(64, 1).half()), r"shape \(64, 1\); the strategy channel"),
        (int8_recipe, replaced("weight", torch.ones(128, 64)), "weight is stored as F32, expected I8"),
    ],
)
def test_a_part_of_another_shape_or_dtype(
    tmp_path: Path, recipe: Callable[[], Recipe], edit: Edit, finding: str
) -> None:
    refused(packed_tiny(tmp_path, recipe(), edit), finding)


def test_outputs_that_do_not_fill_words_are_refused(tmp_path: Path) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{UP}.qweight"] = tensors[f"{UP}.qweight"][:, :124]
        tensors[f"{UP}.scales"] = tensors[f"{UP}.scales"][:, :124]

    refused(packed_tiny(tmp_path, gptq_recipe(), narrow), f"{UP} has 124 outputs; 4-bit zeros are packed 8 a word")


def test_a_matrix_of_another_model(tmp_path: Path) -> None:
    def wider(tensors: dict[str, torch.Tensor]) -> None:
        packed = gptq.pack(
            torch.zeros(136, 64, dtype=torch.uint8), torch.full((136, 2), 8, dtype=torch.uint8), torch.ones(136, 2), 4
        )
        for kind, tensor in packed.items():
            tensors[f"{UP}.{kind}"] = tensor

    refused(
        packed_tiny(tmp_path, gptq_recipe(), wider), r"up_proj\.weight has the shape \(136, 64\), expected \(128, 64\)"
    )


@pytest.mark.parametrize("entry", ["lm_head", "mlp.up_proj", UP, "mlp", "gate_up_proj"])
def test_a_list_of_skipped_modules_names_whole_components(tmp_path: Path, entry: str) -> None:
    folder = packed_tiny(tmp_path, awq_gemm(), modules_to_not_convert=[entry])
    if entry == "lm_head":
        assert dtype_of(read_checkpoint(folder)) == "AWQ_GEMM"
    else:
        refused(folder, f"is stored in codes .*, yet modules_to_not_convert names '{entry}'")
    configure(folder, awq_gemm().settings | {"modules_to_not_convert": ["gate", "up", "proj"]})
    assert dtype_of(read_checkpoint(folder)) == "AWQ_GEMM"


def test_a_head_in_codes_that_is_tied_or_left_out(tmp_path: Path) -> None:
    untied = tiny_llama_checkpoint(tmp_path / "plain", tie_word_embeddings=False)
    folder, _ = quantise(untied, tmp_path, gptq_recipe(), lambda name: in_layers(name) or name == "lm_head.weight")
    read_checkpoint(folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"tie_word_embeddings": True}))
    refused(folder, "ties the output head to the embedding, yet lm_head is stored in codes")
    content["quantization_config"]["lm_head"] = False
    (folder / "config.json").write_text(json.dumps(content))
    refused(folder, "lm_head is stored in codes .*, and the configuration says lm_head false")


def test_an_experts_gate_and_up_must_be_alike(tmp_path: Path) -> None:
    plain = family_checkpoint(tmp_path / "plain", "qwen3_moe")
    folder, _ = quantise(plain, tmp_path, awq_gemm(), lambda name: in_layers(name) and "experts.2.up" not in name)
    refused(folder, r"experts\.2\.gate_proj\.weight is stored as AWQ_GEMM of 4 bits in groups of 32, and .* as F32")


def test_a_router_in_codes(tmp_path: Path) -> None:
    plain = family_checkpoint(tmp_path / "plain", "qwen3_moe")
    folder, _ = quantise(plain, tmp_path, packed_recipe(), lambda name: ".layers." in name)
    refused(folder, r"the router .*mlp\.gate\.weight is stored in codes \(CT_PACKED\)", UnsupportedCheckpointError)


# --- refused: files ---


@pytest.mark.parametrize("recipe", [awq_gemm, gptq_recipe, packed_recipe, int8_recipe])
def test_a_truncated_file(tmp_path: Path, recipe: Callable[[], Recipe]) -> None:
    folder = packed_tiny(tmp_path, recipe())
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(folder, "truncated|not a safetensors file")


@pytest.mark.parametrize("with_config", [True, False])
def test_a_pickle_is_not_opened(tmp_path: Path, with_config: bool) -> None:
    trap = b"\x80\x02cbuiltins\nexit\n."
    (tmp_path / "pytorch_model.bin").write_bytes(trap)
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    remedy = r"found pytorch_model\.bin.* A pickle can run code .*save_pretrained\('NEW_FOLDER'\)"
    refused(tmp_path, remedy)
    with pytest.raises(CheckpointError, match=r"looks like a Python pickle .*A pickle can run code .*from_pretrained"):
        read_checkpoint(tmp_path / "pytorch_model.bin")


def test_a_file_of_another_name_is_named(tmp_path: Path) -> None:
    folder = packed_tiny(tmp_path, gptq_recipe())
    file = (folder / "model.safetensors").rename(folder / "gptq_model-4bit-32g.safetensors")
    refused(folder, r"if the weights are gptq_model-4bit-32g\.safetensors, name that file instead of the folder")
    assert dtype_of(read_checkpoint(file)) == "GPTQ_V2"
