"""Whole models whose weights stay in codes: right numbers, the memory that was said, rows that stay independent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.random_checkpoint import FORMATS, GGUF_FORMATS, write_random
from bench.rounding import TEXT
from bench.transformers_llama import build, export
from engine.checkpoint import read_checkpoint
from engine.config import ConfigError, EffectiveSetting, LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.vocab import load_vocab
from kernels.cpu_ops.group_linear import multiplies_bytes
from kernels.group_quant import GroupQuant
from kernels.registry import Remark
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import complete, load, prompt_logits

PROMPT = [index * 37 % 320 for index in range(40)]
# Root mean square of errors to that of logits: fp32 sums, where scale and minimum may nearly cancel, and activations in
# bf16, 2^-9 a rounding.
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2}


@pytest.mark.parametrize("form", FORMATS)
def test_logits_are_those_of_the_dequantised_weights(form: str, tmp_path: Path) -> None:
    path = write_random(tmp_path / "model", form, "tiny")
    for dtype, tolerance in TOLERANCE.items():
        loaded = load(path, dtype=dtype, max_num_seqs=64, max_model_len=256)
        truth = oracle.double_logits(build(loaded.info, torch.float64), PROMPT)
        error = prompt_logits(loaded.runner, PROMPT).double() - truth
        assert error.square().mean().sqrt() <= tolerance * truth.square().mean().sqrt(), dtype
        assert loaded.exactness.level == "bits", loaded.exactness.reason
        told = loaded.info.weights_bytes(2 if dtype == "bfloat16" else 4)
        assert told <= loaded.runner.weights_bytes <= 1.05 * told
        assert loaded.plan.weights_bytes == told


@pytest.mark.parametrize("form", FORMATS[1:])
def test_linear_layers_stay_in_codes(form: str, tmp_path: Path) -> None:
    loaded = load(write_random(tmp_path / "model", form, "tiny"), max_model_len=256)
    matrices = [weight for layer in loaded.runner.model.layers for weight in layer.weights() if len(weight.shape) == 2]
    assert matrices
    assert all(isinstance(weight, GroupQuant) for weight in matrices)
    assert isinstance(loaded.runner.model.head.weight, GroupQuant) == (form in GGUF_FORMATS)


@pytest.mark.parametrize("form", ["Q4_K", "AWQ", "GPTQ act order"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_changes_no_token(form: str, dtype: str, tmp_path: Path) -> None:
    path = write_random(tmp_path / "model", form, "tiny")
    sampling = SamplingParams(temperature=0.8, max_tokens=12, seed=5, ignore_eos=True)
    prompts = {
        str(index): ([(index * 31 + place * 7) % 320 for place in range(5 + 9 * index)], sampling) for index in range(6)
    }
    together = complete(load(path, dtype=dtype, max_model_len=256).engine, prompts)
    alone = load(path, dtype=dtype, max_model_len=256, max_num_batched_tokens=16).engine
    assert together == {name: complete(alone, {name: request})[name] for name, request in prompts.items()}


def test_the_default_model_in_codes_is_its_bf16_within_rounding_at_a_third_of_the_memory(
    default_model_path: Path, tmp_path: Path
) -> None:
    """Both compute in bf16, and miss fp32's logits by about as much; over a text, since single rows scatter."""
    export(read_checkpoint(default_model_path), tmp_path / "bf16", torch.bfloat16)
    options = {"max_num_seqs": 64, "max_model_len": 256, "max_num_batched_tokens": 64}
    tokens = load_vocab(default_model_path).encode(" ".join(TEXT.split()))
    pieces = [tokens[first : first + 60] for first in range(0, 120, 60)]

    def logits(path: Path, dtype: str, activation_bits: str = "16") -> tuple[torch.Tensor, int]:
        runner = load(path, dtype=dtype, activation_bits=activation_bits, **options).runner
        return torch.cat([prompt_logits(runner, piece) for piece in pieces]), runner.weights_bytes

    truth, _ = logits(default_model_path, "float32")
    (codes, codes_bytes), (plain, plain_bytes) = (
        logits(path, "bfloat16") for path in (default_model_path, tmp_path / "bf16")
    )
    errors = [(found - truth).square().mean().sqrt() for found in (codes, plain)]
    assert errors[0] <= 1.25 * errors[1]
    rounded, _ = logits(default_model_path, "bfloat16", "8")
    assert (rounded - truth).square().mean().sqrt() <= 2 * errors[1]
    assert errors[0] < 0.05 * truth.square().mean().sqrt()
    assert codes_bytes <= 0.4 * plain_bytes


def test_what_activations_are_rounded_to_is_told(default_model_path: Path, tmp_path: Path) -> None:
    def told(path: Path, **options: Any) -> list[tuple[str, str]]:
        loaded = load(path, max_model_len=256, **options)
        found = [setting for setting in loaded.settings if setting.name == "activation_bits"]
        return [(setting.requested, setting.effective) for setting in found]

    # the default model has layers of 4 and a head of 8 bits
    told_of = {
        (True, True): ([("auto", "8")], []),
        (True, False): ([("auto", "8 for codes of 4 bits")], [("8", "8 for codes of 4 bits")]),
        (False, False): ([], [("8", "16")]),
    }
    by_itself, wished = told_of[multiplies_bytes(4), multiplies_bytes(8)]
    assert told(default_model_path) == by_itself
    assert told(default_model_path, activation_bits="8") == wished
    assert told(default_model_path, activation_bits="16") == []
    assert told(default_model_path, activation_bits="8", dtype="float32") == [("8", "16")]
    assert told(write_random(tmp_path / "model", "BF16", "tiny")) == []
    with pytest.raises(ConfigError, match="activation_bits='4': known are auto, 8, 16"):
        LoadOptions(activation_bits="4")


def test_the_reference_rounds_no_activations_of_itself(tmp_path: Path) -> None:
    """As where there is no compiler: it gains no speed by it. Asked to, it does as the fast kernels do, and says so."""
    path = write_random(tmp_path / "model", "Q4_1", "tiny")
    found = {}
    for wish, told in (("auto", [("auto", "16")]), ("16", []), ("8", [("8", "8, emulated")])):
        loaded = load(path, kernel_backend="reference", activation_bits=wish, max_num_seqs=64, max_model_len=64)
        settings = [setting for setting in loaded.settings if setting.name == "activation_bits"]
        assert [(setting.requested, setting.effective) for setting in settings] == told
        assert all("the reference" in setting.reason for setting in settings)
        found[wish] = prompt_logits(loaded.runner, PROMPT)
    assert torch.equal(found["auto"], found["16"])
    assert not torch.equal(found["8"], found["16"])
    fp32 = load(path, kernel_backend="reference", dtype="float32", max_model_len=64)
    assert "activation_bits" not in {setting.name for setting in fp32.settings}


def test_groups_that_the_kernels_do_not_take_run_and_are_told(tmp_path: Path) -> None:
    path = write_random(tmp_path / "model", "AWQ", "tiny", group_size=8)
    loaded = load(path, dtype="float32", max_num_seqs=64, max_model_len=256)
    told = [setting for setting in loaded.settings if setting.name == "kernel:group_linear"]
    assert [setting.effective for setting in told] == ["reference for some"]
    assert "groups of 8" in told[0].reason
    truth = oracle.double_logits(build(loaded.info, torch.float64), PROMPT)
    error = prompt_logits(loaded.runner, PROMPT).double() - truth
    assert error.square().mean().sqrt() <= 1e-4 * truth.square().mean().sqrt()


def test_what_a_backend_says_of_itself_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Remark("kernel_matrix_tiles", "granted", "refused", "the system refuses them")
    monkeypatch.setattr("kernels.cpu_ops.binding.remarks", lambda: [said])
    path = write_random(tmp_path / "model", "BF16", "tiny")
    told = [setting for setting in load(path, max_model_len=256).settings if setting.name == said.name]
    assert told == [EffectiveSetting(said.name, said.wished, said.found, said.reason)]
    told = [setting for setting in load(path, kernel_backend="reference").settings if setting.name == said.name]
    assert told == [], "of a backend that serves no op"
