"""What only a GPU can show: `make gpu-check`. Correctness, then bandwidth, then the whole engine; prints Markdown.

Needs torch, triton and transformers only. Makes a random Llama of the default model's shape, so that nothing is
downloaded. Exit status 0: all correct; 1: a figure is wrong; 2: there is no GPU.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.bandwidth import read_bandwidth, synchronize
from engine.checkpoint import read_checkpoint
from engine.config import FP8_CAPABILITY, LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import ScheduledRequest, SchedulerOutput
from engine.runner.exactness import probe
from engine.runner.load_plan import plan_load
from engine.runner.model_runner import ModelRunner

CUDA = torch.device("cuda:0")
PROMPT_TOKENS, STEPS = 64, 50
POOL_BYTES = 1 << 30
# Largest error of a logit against fp64 as a share of the largest logit, by dtype and kv_cache_dtype: fp32 sums of 30
# layers, bf16 rounding on top, and codes
TOLERANCES = {
    ("float32", "auto"): 1e-4,
    ("bfloat16", "auto"): 5e-2,
    ("bfloat16", "int8"): 5e-2,
    ("bfloat16", "fp8"): 1e-1,
}


def main() -> int:
    """Runs all checks; see the module's docstring for the exit status."""
    if not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device: nothing was checked", file=sys.stderr)
        return 2
    print(
        f"{datetime.datetime.now().astimezone():%Y-%m-%d}, {torch.cuda.get_device_name(0)}, torch {torch.__version__}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        truth, prompt = make_checkpoint(Path(folder))
        right = [check_correctness(Path(folder), dtypes, prompt, truth) for dtypes in TOLERANCES]
        print_bandwidth()
        print_speed(Path(folder))
    return 0 if all(right) else 1


def make_checkpoint(folder: Path) -> tuple[torch.Tensor, list[int]]:
    """Writes the random model; returns fp64 logits of a prompt's last token, and the prompt."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    prompt = torch.randint(config.vocab_size, (PROMPT_TOKENS,)).tolist()
    with torch.inference_mode():
        truth = model.double()(torch.tensor([prompt])).logits[0, -1]
    return truth, prompt


def load(folder: Path, dtype: str, kv_cache_dtype: str = "auto") -> tuple[ModelRunner, LoadOptions, int, int]:
    """A runner on the GPU, its options, and the blocks and context of its pool."""
    info = read_checkpoint(folder)
    options = LoadOptions(
        dtype=dtype,
        device="cuda",
        kv_cache_memory_bytes=POOL_BYTES,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=1024,
    )
    plan = plan_load(info, options)
    runner = ModelRunner(info, options, plan, lambda stage, done, total, message: None)
    return runner, options, plan.kv.num_blocks, plan.kv.max_model_len


def share(name: str, tokens: list[int], start: int, blocks: range) -> ScheduledRequest:
    """One request's part of a hand-made plan."""
    return ScheduledRequest(
        request_id=name,
        first=start == 0,
        token_ids=tuple(tokens),
        num_computed_tokens=start,
        block_ids=(tuple(blocks),),
        samples=True,
        sampling=SamplingParams(temperature=0),
        seed=0,
        num_prompt_tokens=start + len(tokens),
    )


def check_correctness(folder: Path, dtypes: tuple[str, str], prompt: list[int], truth: torch.Tensor) -> bool:
    """Logits against fp64 on the CPU, and whether a row's bits depend on its company."""
    dtype, kv_cache_dtype = dtypes
    name = f"- {dtype}, KV cache {kv_cache_dtype}"
    if kv_cache_dtype == "fp8" and torch.cuda.get_device_capability(CUDA) < FP8_CAPABILITY:
        print(f"{name}: not on this device")
        return True
    runner, options, num_blocks, max_model_len = load(folder, dtype, kv_cache_dtype)
    plan = SchedulerOutput((share("a", prompt, 0, range(1, 1 + PROMPT_TOKENS // options.block_size)),), ())
    error = float((runner.logits(plan)[0].double().cpu() - truth).abs().max() / truth.abs().max())
    runner.forget(["a"])
    exactness = probe(runner, options, num_blocks, max_model_len)
    verdict = "right" if error <= TOLERANCES[dtypes] else f"WRONG (at most {TOLERANCES[dtypes]})"
    print(f"{name}: largest relative error {error:.2e}, {verdict}; exactness {exactness.level}: {exactness.reason}")
    return error <= TOLERANCES[dtypes]


def print_bandwidth() -> None:
    """Copies of growing size against the read bandwidth of this run."""
    print(f"\nread bandwidth {read_bandwidth(CUDA) / 1e9:.0f} GB/s\n")
    print("| weight [N, K] | rows | us | GB/s |\n|---|---|---|---|")
    for outputs, inputs in ((960, 576), (3072, 576), (576, 1536), (49152, 576), (8192, 8192)):
        weight = torch.randn(outputs, inputs, device=CUDA, dtype=torch.bfloat16)
        for rows in (1, 16):
            x = torch.randn(rows, inputs, device=CUDA, dtype=torch.bfloat16)
            seconds = timed(lambda x=x, weight=weight: x @ weight.t())  # type: ignore[misc]
            print(f"| {outputs} x {inputs} | {rows} | {seconds * 1e6:.1f} | {weight.nbytes / seconds / 1e9:.0f} |")


def print_speed(folder: Path) -> None:
    """Decode steps of the whole engine at several batch sizes."""
    runner, options, _, _ = load(folder, "bfloat16")
    blocks_each = -(-(PROMPT_TOKENS + STEPS) // options.block_size)
    print("\n| batch | decode tok/s |\n|---|---|")
    for batch in (1, 4, 16):
        names = [f"{batch}-{index}" for index in range(batch)]
        tables = [range(1 + index * blocks_each, 1 + (index + 1) * blocks_each) for index in range(batch)]
        for name, table in zip(names, tables, strict=True):
            runner.execute(SchedulerOutput((share(name, [1] * PROMPT_TOKENS, 0, table),), ()))
        synchronize(CUDA)
        start = time.perf_counter()
        for step in range(STEPS):
            requests = tuple(share(name, [1], PROMPT_TOKENS + step, range(0)) for name in names)
            runner.execute(SchedulerOutput(requests, ()))
        synchronize(CUDA)
        print(f"| {batch} | {batch * STEPS / (time.perf_counter() - start):.0f} |")
        runner.forget(names)


def timed(run: object, repeats: int = 50) -> float:
    """Seconds of one call, after a warm-up."""
    assert callable(run)
    for _ in range(5):
        run()
    synchronize(CUDA)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize(CUDA)
    return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    sys.exit(main())
