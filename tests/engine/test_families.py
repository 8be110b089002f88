"""Every family against transformers on a tiny random checkpoint: fp64 logits to 1e-9, and 64 greedy tokens in fp32.

The greedy tokens are the same alone, in chunks beside other requests, and after a prefix hit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.checkpoint.hf_families import FAMILIES
from engine.core.sampling_params import SamplingParams
from engine.loading import LoadError
from engine.models.registry import FALLBACK, MODELS
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import complete, load, prompt_logits, rows_until_done
from tests.engine.tiny_families import SHAPES, VARIANTS, family_checkpoint, random_checkpoint

FP64_TOLERANCE = 1e-9
NUM_TOKENS = 64
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
LIMITS: dict[str, Any] = {"max_model_len": 256}


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 320, (length,), generator=generator).tolist() for length in lengths]


def oracle_model(path: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, experts_implementation="eager").eval()


def test_every_architecture_has_a_decoder() -> None:
    assert {family.key for family in FAMILIES.values()} <= MODELS.keys()
    tried = {model_type for model_type, _ in VARIANTS.values()}
    assert tried == MODELS.keys() - {FALLBACK}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_fp64(variant: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path / "tiny", variant)
    engine = load(path, dtype="float64", max_num_seqs=64, **LIMITS)
    model = oracle_model(path, torch.float64)
    for prompt in prompts(30, 57):
        ours, truth = prompt_logits(engine.runner, prompt), oracle.double_logits(model, prompt)
        assert float((ours - truth).abs().max()) < FP64_TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_alone_chunked_batched_and_from_a_cached_prefix(variant: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path / "tiny", variant)
    model = oracle_model(path, torch.float32)
    wanted = {f"r{index}": prompt for index, prompt in enumerate(prompts(40, 29, 77))}
    expected = {name: oracle.greedy(model, prompt, NUM_TOKENS) for name, prompt in wanted.items()}
    alone = load(path, dtype="float32", **LIMITS).engine
    assert {name: complete(alone, {name: (prompt, GREEDY)})[name] for name, prompt in wanted.items()} == expected
    chunked = load(path, dtype="float32", max_num_batched_tokens=16, **LIMITS).engine
    assert complete(chunked, {name: (prompt, GREEDY) for name, prompt in wanted.items()}) == expected
    assert chunked.add_request("again", wanted["r2"], GREEDY) is None
    rows = rows_until_done(chunked)
    assert [token for row in rows for token in row.token_ids] == expected["r2"]
    assert rows[-1].summary is not None
    assert rows[-1].summary.num_cached_tokens == 64


@pytest.mark.parametrize("variant", ["gemma2", "gemma3", "olmo2", "granite", "mixtral"])
def test_bfloat16_text_does_not_depend_on_company(variant: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path / "tiny", variant)
    loaded = load(path, dtype="bfloat16", max_num_batched_tokens=32, **LIMITS)
    assert loaded.exactness.level == "bits", loaded.exactness.reason
    requests = {f"r{index}": (prompt, GREEDY) for index, prompt in enumerate(prompts(40, 29, 77, 5))}
    together = complete(loaded.engine, requests)
    alone = {name: complete(loaded.engine, {name: request})[name] for name, request in requests.items()}
    assert together == alone


def test_weights_are_counted(tmp_path: Path) -> None:
    for variant in ("qwen2", "gemma3", "olmo2", "phi3", "mixtral"):
        loaded = load(family_checkpoint(tmp_path / variant, variant), dtype="float32", **LIMITS)
        assert loaded.runner.weights_bytes == 4 * loaded.info.num_parameters, variant


def test_dynamic_rope_beyond_the_trained_context_has_one_base(tmp_path: Path) -> None:
    """The base that transformers takes for a text of max_model_len tokens serves texts of all lengths."""
    changes = {"max_position_embeddings": 64}
    rope = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}
    path = random_checkpoint(tmp_path / "tiny", "llama", SHAPES | changes | rope)
    long = load(path, dtype="float64", max_model_len=96, max_num_seqs=96)
    (setting,) = [setting for setting in long.settings if setting.name == "rope scaling"]
    assert "stretched once, for 96 tokens" in setting.reason
    model = oracle_model(path, torch.float64)
    (prompt,) = prompts(96)
    truth = oracle.double_logits(model, prompt)
    assert float((prompt_logits(long.runner, prompt) - truth).abs().max()) < FP64_TOLERANCE
    assert float((prompt_logits(long.runner, prompt[:40]) - truth[:40]).abs().max()) < FP64_TOLERANCE
    plain = load(path, dtype="float64", max_num_seqs=64)
    assert plain.plan.kv.max_model_len == 64
    assert "rope scaling" not in {setting.name for setting in plain.settings}
    assert float((prompt_logits(plain.runner, prompt[:40]) - truth[:40]).abs().max()) > 1e-3
    with pytest.raises(LoadError, match="context is 64 tokens; ask for at most 128, by rope scaling"):
        load(path, max_model_len=129)
