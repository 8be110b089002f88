"""The logits of a whole random Llama of the default model's shape against transformers in fp64 on the CPU."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from bench.gpu_parts.random_model import LLAMA_8B, TINY
from bench.gpu_parts.steps import Script
from bench.gpu_parts.task import LEFT_OUT, RIGHT, WRONG, Row, Task
from bench.transformers_llama import llama_config
from engine.checkpoint import read_checkpoint
from engine.config import FP8_CAPABILITY, LoadOptions, ModelConfig
from engine.runner.exactness import probe
from engine.runner.load_plan import plan_load
from engine.runner.model_runner import ModelRunner

DEFAULT_SHAPE: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
PROMPT_TOKENS = 64
# Largest error of a logit against fp64 as a share of the largest logit, by dtype and kv_cache_dtype: fp32 sums of 30
# layers, bf16 rounding on top, and codes
TOLERANCES = {
    ("float32", "auto"): 1e-4,
    ("bfloat16", "auto"): 5e-2,
    ("bfloat16", "int8"): 5e-2,
    ("bfloat16", "fp8"): 1e-1,
}


def compare(task: Task) -> None:
    """Every dtype of model and cache; in a dry run fp32 of a tiny one."""
    config = TINY if task.dry else replace(LLAMA_8B, **DEFAULT_SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        truth, prompt = _checkpoint(Path(folder), config, 7 if task.dry else PROMPT_TOKENS)
        for dtype, kv_cache_dtype in list(TOLERANCES)[:1] if task.dry else TOLERANCES:
            name = f"{dtype}, KV cache {kv_cache_dtype}"
            if kv_cache_dtype == "fp8" and torch.cuda.get_device_capability(task.device) < FP8_CAPABILITY:
                task.add(Row(name, verdict=LEFT_OUT, note="this card has no fp8"))
                continue
            _compare(task, Path(folder), name, dtype, kv_cache_dtype, prompt, truth)


def _checkpoint(folder: Path, config: ModelConfig, length: int) -> tuple[torch.Tensor, list[int]]:
    """Writes the model; fp64 logits of a prompt's last token, and the prompt."""
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(llama_config(config))
    model.eval()
    model.save_pretrained(folder)
    prompt = torch.randint(config.vocab_size, (length,)).tolist()
    with torch.inference_mode():
        truth = model.double()(torch.tensor([prompt])).logits[0, -1]
    return truth, prompt


def _compare(
    task: Task, folder: Path, name: str, dtype: str, kv_cache_dtype: str, prompt: list[int], truth: torch.Tensor
) -> None:
    """Logits, and whether a row's bits depend on its company."""
    info = read_checkpoint(folder)
    options = LoadOptions(
        speculation="off",
        dtype=dtype,
        device="cpu" if task.dry else "cuda",
        kernel_backend="triton_ops" if task.dry else "auto",
        num_threads=1 if task.dry else None,
        kv_cache_memory_bytes=1 << (22 if task.dry else 28),
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=128 if task.dry else 1024,
        max_num_batched_tokens=16 if task.dry else 512,
    )
    plan = plan_load(info, options)
    runner = ModelRunner(info, options, plan, lambda stage, done, total, message: None)
    script = Script(len(prompt))
    logits = runner.logits(script.plan(("a", prompt)))[0].double().cpu()
    runner.forget(script.forget())
    error, allowed = float((logits - truth).abs().max() / truth.abs().max()), TOLERANCES[dtype, kv_cache_dtype]
    figures = {"error": f"{error:.1e}", "allowed": f"{allowed:.0e}"}
    task.add(Row(name, figures, RIGHT if error <= allowed else WRONG))
    runner.prepare()
    exactness = probe(runner, options, plan.kv.num_blocks, plan.kv.max_model_len)
    task.add(Row(f"{name}: exactness", verdict=RIGHT if exactness.level == "bits" else WRONG, note=exactness.reason))
