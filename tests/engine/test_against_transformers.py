"""The engine's logits against transformers on the same weights: fp64 to 1e-9, fp32 no worse than twice theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.transformers_llama import build
from engine.loading import LoadedEngine
from engine.vocab import load_vocab
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

FP64_TOLERANCE = 1e-9
CLEAR_MARGIN = 1e-3  # top-2 margins above this must agree on the argmax
REAL_PROMPTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 12:\n",
    "La pizarra es verde. Añade 3.14 y π.",
)
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "safetensors": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "llama3 rope": {"rope_scaling": LLAMA3_SCALING},
    "gguf": {"format": "gguf"},
    "one kv head": {"num_key_value_heads": 1},
}


def compare(path: Path, prompts: list[list[int]]) -> None:
    """Checks all three statements of the module's docstring for one checkpoint."""
    double, single = (load(path, dtype=dtype, max_num_seqs=64, max_model_len=256) for dtype in ("float64", "float32"))
    double_oracle, single_oracle = (build(double.info, dtype) for dtype in (torch.float64, torch.float32))
    for prompt in prompts:
        ours = prompt_logits(double.runner, prompt)
        truth = oracle.double_logits(double_oracle, prompt)
        assert float((ours - truth).abs().max()) < FP64_TOLERANCE
        compare_single(single, single_oracle, prompt, truth)


def compare_single(engine: LoadedEngine, model: Any, prompt: list[int], truth: torch.Tensor) -> None:
    ours, theirs = prompt_logits(engine.runner, prompt), oracle.logits(model, prompt)
    our_error = float((ours.double() - truth).abs().max())
    their_error = float((theirs.double() - truth).abs().max())
    assert our_error <= 2 * their_error, (our_error, their_error)
    top = truth.topk(2, dim=-1).values
    clear = (top[:, 0] - top[:, 1]) > CLEAR_MARGIN
    assert torch.equal(ours.argmax(-1)[clear], truth.argmax(-1)[clear])


@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_checkpoint(variant: str, tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny", **VARIANTS[variant])
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(3, 320, (length,), generator=generator).tolist() for length in (5, 33)]
    compare(path, prompts)


def test_default_model_on_real_prompts(default_model_path: Path) -> None:
    vocab = load_vocab(default_model_path)
    compare(default_model_path, [vocab.encode(text) for text in REAL_PROMPTS])
