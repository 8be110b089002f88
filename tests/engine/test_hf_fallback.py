"""Families without a decoder here, through transformers on our cache: its own logits and its own greedy tokens.

The greedy tokens are the same in chunks beside other requests and, alone, after a prefix hit; where the engine says
"bits", a seed gives the same text in any company. What cannot run is refused with the reason: test_hf_refusals.py.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from app.fit import estimate
from engine.checkpoint import read_checkpoint
from engine.config import GIB, LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.models.hf_fallback import TransformersModel
from engine.models.registry import FALLBACK, model_class
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import complete, load, prompt_logits, rows_until_done
from tests.engine.test_families import GREEDY, NUM_TOKENS, prompts
from tests.engine.test_logprobs import PROMPTS, WISH, check, run
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_foreign import FOREIGN, foreign_checkpoint

LIMITS: dict[str, Any] = {"max_model_len": 256}
# transformers' norms round to fp32 on both sides, from inputs that differ in their last fp64 bits.
FP64_TOLERANCE = 1e-5

Checkpoint = Callable[[str], Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The folder of a model type, written once."""
    folders: dict[str, Path] = {}

    def written(model_type: str) -> Path:
        if model_type not in folders:
            folders[model_type] = foreign_checkpoint(tmp_path_factory.mktemp(model_type), model_type)
        return folders[model_type]

    return written


def oracle_model(path: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, experts_implementation="eager", attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("model_type", FOREIGN)
def test_logits(model_type: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(model_type)
    loaded = load(path, dtype="float64", max_num_seqs=64, **LIMITS)
    assert isinstance(loaded.runner.model, TransformersModel)
    model = oracle_model(path, torch.float64)
    for prompt in prompts(30, 57):
        with oracle.double_softmax():
            truth = oracle.logits(model, prompt)
        assert float((prompt_logits(loaded.runner, prompt) - truth).abs().max()) < FP64_TOLERANCE


@pytest.mark.parametrize("model_type", FOREIGN)
def test_greedy_tokens_chunked_batched_and_from_a_cached_prefix(model_type: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(model_type)
    model = oracle_model(path, torch.float32)
    wanted = {f"r{index}": prompt for index, prompt in enumerate(prompts(40, 77))}
    expected = {name: oracle.greedy(model, prompt, NUM_TOKENS) for name, prompt in wanted.items()}
    engine = load(path, dtype="float32", max_num_batched_tokens=16, **LIMITS).engine
    assert complete(engine, {name: (prompt, GREEDY) for name, prompt in wanted.items()}) == expected
    assert engine.add_request("again", wanted["r1"], GREEDY) is None
    rows = rows_until_done(engine)
    assert [token for row in rows for token in row.token_ids] == expected["r1"]
    assert rows[-1].summary is not None
    assert rows[-1].summary.num_cached_tokens == 64


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        ("gpt_neox", "bfloat16"),
        ("gpt2", "bfloat16"),
        ("olmo3", "bfloat16"),
        ("olmoe", "bfloat16"),
        ("cohere", "float32"),
    ],
)
def test_text_does_not_depend_on_company_where_bits_are_promised(
    model_type: str, dtype: str, checkpoint: Checkpoint
) -> None:
    loaded = load(checkpoint(model_type), dtype=dtype, max_num_batched_tokens=32, **LIMITS)
    assert loaded.exactness.level == "bits", loaded.exactness.reason
    drawn = SamplingParams(seed=11, max_tokens=24, ignore_eos=True)
    requests = {f"r{index}": (prompt, drawn) for index, prompt in enumerate(prompts(40, 29, 77, 5))}
    together = complete(loaded.engine, requests)
    alone = {name: complete(loaded.engine, {name: request})[name] for name, request in requests.items()}
    assert together == alone


def test_a_kernel_that_is_not_invariant_is_reported(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own products in place of ours."""
    monkeypatch.setattr("engine.models.hf_fallback.replace_linears", lambda *arguments: None)
    monkeypatch.setattr("engine.models.hf_modules._fits", lambda *arguments, **named: False)
    loaded = load(checkpoint("gpt_neox"), dtype="float32", **LIMITS)
    assert loaded.exactness.level == "distribution"
    assert "when it is cut up beside others" in loaded.exactness.reason


@pytest.mark.parametrize("model_type", ["cohere", "olmoe"])
def test_logprobs_of_the_prompt_go_through_the_models_own_head(model_type: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(model_type)
    model = oracle_model(path, torch.float32)
    found = run(load(path, dtype="float32", max_num_batched_tokens=16, max_num_seqs=3).engine, WISH)
    for index, prompt in enumerate(PROMPTS):
        output, logprobs, prompt_logprobs = found[str(index)]
        truth = torch.log_softmax(oracle.logits(model, [*prompt, *output]), -1)
        check(logprobs, truth[len(prompt) - 1 : -1], output)
        assert prompt_logprobs is not None
        check(prompt_logprobs, truth[: len(prompt) - 1], prompt[1:])


@pytest.mark.parametrize("model_type", ["starcoder2", "olmo3"])
def test_windows_are_those_of_the_models_masks(model_type: str, checkpoint: Checkpoint) -> None:
    layers = load(checkpoint(model_type), **LIMITS).runner.model.layers
    assert 20 in {layer.window for layer in layers}
    assert (0 in {layer.window for layer in layers}) == (model_type == "olmo3")


@pytest.mark.parametrize("model_type", ["gpt2", "phi3"])
def test_it_is_told(model_type: str, checkpoint: Checkpoint) -> None:
    loaded = load(checkpoint(model_type), dtype="float32", **LIMITS)
    (setting,) = [setting for setting in loaded.settings if setting.name == "model"]
    assert (setting.requested, setting.effective) == (model_type, "transformers")
    assert ("partial_rotary_factor" in setting.reason) == (model_type == "phi3")
    assert model_class(FALLBACK) is TransformersModel
    assert loaded.runner.weights_bytes == 4 * loaded.info.num_parameters


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_no_weight_stays_in_the_file(dtype: str, tmp_path: Path) -> None:
    """Also where the stored dtype is the compute dtype, and transformers would keep the mapped tensor."""
    path = foreign_checkpoint(tmp_path / "tiny", "starcoder2")
    if dtype == "BF16":
        oracle_model(path, torch.bfloat16).save_pretrained(path)
    loaded = load(path, dtype="bfloat16" if dtype == "BF16" else "float32", **LIMITS)
    gc.collect()
    assert str(path / "model.safetensors") not in Path("/proc/self/maps").read_text()
    complete(loaded.engine, {"r": (prompts(9)[0], GREEDY)})


def test_an_estimate_says_what_the_load_does(checkpoint: Checkpoint) -> None:
    path = checkpoint("gpt_neox")
    info = read_checkpoint(path)
    fit = estimate(info, LoadOptions(dtype="float32"), 8 * GIB, 16 * GIB, "cpu")
    assert fit.fits
    assert fit.weights_bytes == load(path, dtype="float32", **LIMITS).runner.weights_bytes


def test_old_checkpoints_spell_names_without_the_prefix_and_store_masks(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """As GPT-2 was published."""
    path, old = checkpoint("gpt2"), tmp_path / "old"
    old.mkdir()
    (old / "config.json").write_text((path / "config.json").read_text())
    weights = {
        name.removeprefix("transformer."): tensor for name, tensor in load_file(path / "model.safetensors").items()
    }
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 512, 512, dtype=torch.uint8) for layer in range(4)}
    save_file(weights | masks, old / "model.safetensors")
    prompt = prompts(30)[0]
    ours = [
        prompt_logits(load(folder, dtype="float32", max_num_seqs=32, **LIMITS).runner, prompt) for folder in (path, old)
    ]
    assert torch.equal(*ours)


def test_transformers_is_imported_for_such_a_model_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Neither to read a checkpoint that it will run, as the app does, nor to load a model of ours."""
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    code = (
        "import sys; from pathlib import Path; from engine.checkpoint import read_checkpoint; "
        f"assert read_checkpoint(Path({str(checkpoint('phi'))!r})).config.transformers_class == 'PhiForCausalLM'; "
        "assert not {'torch', 'transformers'} & sys.modules.keys(); from tests.engine.stepping import load; "
        f"load(Path({str(path)!r}), max_model_len=64, num_threads=1); assert 'transformers' not in sys.modules"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], env=environment)
