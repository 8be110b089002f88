"""The doctor's report of a checkpoint: counted from headers, for every way of storing matrices, and for damage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.checkpoint.doctor import CheckpointReport, describe, examine, module_kind
from engine.checkpoint.doctor_storage import Storage
from tests.engine.packed_headers import packed_checkpoint
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

LAYER_MATRICES = 14  # 2 layers of 7
LAYER_WEIGHTS = 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 128)


def report_of(path: Path) -> tuple[CheckpointReport, Storage]:
    report, info = examine(path)
    assert report.verdict == "sound", report.problem
    assert info is not None
    assert report.storage is not None
    return report, report.storage


def kinds(report: CheckpointReport) -> dict[str, tuple[int, int]]:
    return {kind.kind: (kind.quantised, kind.plain) for kind in report.kinds}


def test_a_plain_checkpoint(tmp_path: Path) -> None:
    report, storage = report_of(tiny_llama_checkpoint(tmp_path, tie_word_embeddings=False, attention_bias=True))
    assert (report.format, report.architecture, report.runner) == ("safetensors", "llama", "native")
    assert (storage.method, storage.layout, storage.bits) == ("none", "F32", ())
    assert storage.formats == {"F32": LAYER_MATRICES + 2}
    assert report.input_sizes == (64, 128)
    assert kinds(report) == {"head": (0, 1), "embedding": (0, 1), "attention": (0, 8), "mlp": (0, 6)}
    assert (report.tied_head, report.stored_head, report.num_biases) == (False, True, 8)
    assert report.bits_per_weight_on_disk == 32
    assert (report.bits_per_weight, report.bytes_in_memory) == (16, 2 * report.num_parameters)
    assert report.fp16_risk is not None
    assert report.fp16_risk.level == "none"


def test_a_gguf_file_in_blocks(tmp_path: Path) -> None:
    report, storage = report_of(tiny_llama_checkpoint(tmp_path, format="gguf", dtype="Q4_1"))
    assert (storage.method, storage.layout) == ("GGUF", "blocks")
    assert (storage.bits, storage.group_sizes, storage.zero_points) == ((4,), (32,), "asymmetric")
    assert storage.formats == {"Q4_1": LAYER_MATRICES + 1}
    assert kinds(report) == {"embedding": (1, 0), "attention": (8, 0), "mlp": (6, 0)}
    assert report.tied_head
    assert not report.stored_head
    matrices = sum(kind.num_parameters for kind in report.kinds)
    assert sum(kind.bytes_on_disk for kind in report.kinds) == matrices * 20 // 32
    assert sum(kind.bytes_in_memory for kind in report.kinds) == matrices * 20 // 32, "codes and scales as stored"
    assert 5.0 < report.bits_per_weight < 5.2
    assert (storage.act_order, report.fp16_risk and report.fp16_risk.level) == (False, "low")


def test_blocks_without_minima_are_symmetric(tmp_path: Path) -> None:
    _, storage = report_of(tiny_llama_checkpoint(tmp_path, format="gguf", dtype="Q8_0"))
    assert (storage.bits, storage.zero_points) == ((8,), "symmetric")


@pytest.mark.parametrize(
    ("recipe", "method", "layout", "zero_points", "scale_bytes"),
    [
        ("gemm", "AWQ", "gemm", "asymmetric", 3),
        ("gemv", "AWQ", "gemv", "asymmetric", 3),
        ("v1", "GPTQ", "v1", "symmetric", 2),
        ("v2", "GPTQ", "v2", "symmetric", 2),
        ("asymmetric v1", "GPTQ", "v1", "asymmetric", 3),
        ("packed", "compressed-tensors", "pack-quantized", "symmetric", 2),
        ("asymmetric packed", "compressed-tensors", "pack-quantized", "asymmetric", 3),
    ],
)
def test_packed_checkpoints(
    tmp_path: Path, recipe: str, method: str, layout: str, zero_points: str, scale_bytes: int
) -> None:
    report, storage = report_of(packed_checkpoint(tmp_path / "made", recipe))
    assert (storage.method, storage.layout, storage.zero_points) == (method, layout, zero_points)
    assert (storage.bits, storage.group_sizes, storage.act_order) == ((4,), (32,), False)
    assert kinds(report) == {"embedding": (0, 1), "attention": (8, 0), "mlp": (6, 0)}
    coded = sum(kind.bytes_in_memory for kind in report.kinds if kind.quantised)
    assert coded == LAYER_WEIGHTS // 2 + LAYER_WEIGHTS // 32 * scale_bytes
    assert report.fp16_risk is not None
    assert report.fp16_risk.level == "low"


def test_a_scale_for_a_whole_row_is_a_group_as_long(tmp_path: Path) -> None:
    report, storage = report_of(packed_checkpoint(tmp_path / "made", "int8"))
    assert (storage.method, storage.layout) == ("compressed-tensors", "int-quantized")
    assert (storage.bits, storage.group_sizes, storage.zero_points) == ((8,), (64, 128), "symmetric")
    assert any(
        remark.startswith("input activations: 8-bit int by each input → not quantised") for remark in report.remarks
    )


def test_what_stays_unquantised_is_counted_and_noted(tmp_path: Path) -> None:
    report, storage = report_of(packed_checkpoint(tmp_path / "made", "gemm", plain="down_proj"))
    assert kinds(report)["mlp"] == (4, 2)
    assert storage.formats == {"AWQ_GEMM": 12, "F16": 3}
    assert any("down_proj in 2" in remark for remark in report.remarks)


def test_act_order_and_its_index_in_memory(tmp_path: Path) -> None:
    plain, _ = report_of(packed_checkpoint(tmp_path / "plain", "v1"))
    report, storage = report_of(packed_checkpoint(tmp_path / "ordered", "ordered"))
    assert storage.act_order
    inputs = 2 * (6 * 64 + 128)  # of all matrices
    assert report.bytes_in_memory == plain.bytes_in_memory + 4 * inputs


def test_gptq_tells_what_the_zeros_are_against_what_the_configuration_says(tmp_path: Path) -> None:
    honest, _ = report_of(packed_checkpoint(tmp_path / "honest", "v1"))
    assert any("symmetric codes in v1; the configuration says gptq" in remark for remark in honest.remarks)
    lying, storage = report_of(packed_checkpoint(tmp_path / "lying", "v1", checkpoint_format="gptq_v2"))
    assert storage.layout == "v1"
    assert any("GPTQ version: gptq_v2 → gptq" in remark for remark in lying.remarks)
    silent, _ = report_of(packed_checkpoint(tmp_path / "silent", "asymmetric v1"))
    assert any("do not tell it, so the configuration's word counts: gptq" in remark for remark in silent.remarks)


def with_dtype(folder: Path, dtype: str, **changes: str) -> CheckpointReport:
    path = tiny_llama_checkpoint(folder, dtype=dtype)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return examine(path)[0]


def test_fp16_risk_follows_storage_family_and_configuration(tmp_path: Path) -> None:
    low = with_dtype(tmp_path / "a", "F16", torch_dtype="float16").fp16_risk
    assert low is not None
    assert (low.level, "Pizarra runs it in bf16" in low.reason) == ("low", True)
    named = with_dtype(tmp_path / "b", "F16", torch_dtype="bfloat16").fp16_risk
    assert named is not None
    assert (named.level, "config.json names bfloat16" in named.reason) == ("possible", True)
    stored = with_dtype(tmp_path / "c", "BF16", torch_dtype="bfloat16").fp16_risk
    assert stored is not None
    assert stored.level == "none"


def test_a_family_trained_in_bf16_is_named(tmp_path: Path) -> None:
    info = examine(tiny_llama_checkpoint(tmp_path, dtype="F16"))[1]
    assert info is not None
    risk = describe(replace(info, config=replace(info.config, architecture="gemma2"))).fp16_risk
    assert risk is not None
    assert (risk.level, "gemma2 was trained in bf16" in risk.reason) == ("possible", True)


def test_a_family_without_a_decoder_of_ours_runs_through_transformers(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report, _ = report_of(folder)
    assert (report.architecture, report.runner) == ("gpt_neox", "transformers")
    assert report.runner_reason == "Pizarra has no decoder of its own for GPTNeoXForCausalLM"


def test_a_tied_head_that_is_stored_is_said_and_not_counted(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path, tie_word_embeddings=False)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report, _ = report_of(folder)
    assert (report.tied_head, report.stored_head) == (True, True)
    assert "head" not in kinds(report)
    assert any("the copy that is stored is checked and not loaded" in remark for remark in report.remarks)


def test_damage_and_what_is_not_supported_are_the_reports_problem(tmp_path: Path) -> None:
    nothing, info = examine(tmp_path / "nothing")
    assert (nothing.verdict, info) == ("broken", None)
    assert "there is no such file or folder" in nothing.problem
    cut = tiny_llama_checkpoint(tmp_path / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1000])
    broken, _ = examine(cut.parent)
    assert (broken.verdict, "truncated" in broken.problem) == ("broken", True)
    unknown, _ = examine(packed_checkpoint(tmp_path / "unknown", "gemm", quant_method="hqq"))
    assert (unknown.verdict, "hqq" in unknown.problem) == ("unsupported", True)
    mismatched, _ = examine(packed_checkpoint(tmp_path / "mismatched", "gemm", group_size=16))
    assert (mismatched.verdict, "group" in mismatched.problem) == ("broken", True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.post_attention_layernorm.weight", "norm"),
        ("model.layers.0.self_attn.q_norm.weight", "norm"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.0.mlp.gate_proj.weight", "mlp"),
        ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.mlp.experts.3.up_proj.weight", "experts"),
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("transformer.wte.weight", "embedding"),
        ("transformer.h.0.ln_1.weight", "norm"),
        ("gpt_neox.layers.0.mlp.dense_h_to_4h.weight", "mlp"),
        ("embed_out.weight", "head"),
        ("model.connector.weight", "other"),
    ],
)
def test_a_tensors_kind_is_read_off_its_name(name: str, kind: str) -> None:
    assert module_kind(name) == kind
