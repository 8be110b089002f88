"""Decode steps of whole models on random weights: tokens per second, with CUDA graphs and without, against the roof.

A step is that of the runner, with its draw and the tokens back on the host. Its roof is the bytes of all weights that
it reads (codes once; of the embedding no more than its rows) and of the keys and values, over the card's own copy
bandwidth.
"""

from __future__ import annotations

import statistics
import time

from bench.gpu_parts.random_model import MODELS, random_runner
from bench.gpu_parts.steps import BLOCK_SIZE, Script
from bench.gpu_parts.task import LEFT_OUT, WRONG, Row, Task, verdict
from engine.config import LoadOptions, ModelConfig
from engine.core.sizing import kv_bytes_per_token
from engine.runner.model_runner import ModelRunner
from kernels.bench import rate_text
from kernels.recording import Eager
from kernels.roofs import copy_bandwidth, synchronize

PROMPT_TOKENS, WARM_UPS, STEPS = 128, 2, 48
BATCHES = (1, 8, 64)
GRAPHS, PLAIN = "CUDA graphs", "no graphs"
JUDGED = ("8B", "numbers", 1, GRAPHS)
TARGET = 0.75  # of the roof
ONE_BATCH_S = 4.0


def load(task: Task, config: ModelConfig, batch: int, tokens: int, *, coded: bool) -> ModelRunner:
    """A runner with room for so many requests of so many tokens; in a dry run by the interpreter, in fp32."""
    blocks = batch * -(-tokens // BLOCK_SIZE) + 1
    dtype, size = ("float32", 4) if task.dry else ("bfloat16", 2)
    options = LoadOptions(
        speculation="off",
        dtype=dtype,
        device="cpu" if task.dry else "cuda",
        kernel_backend="triton_ops" if task.dry else "auto",
        num_threads=1 if task.dry else None,
        block_size=BLOCK_SIZE,
        max_num_seqs=batch,
        max_num_batched_tokens=max(PROMPT_TOKENS, batch),
        max_model_len=tokens,
        kv_cache_memory_bytes=blocks * BLOCK_SIZE * kv_bytes_per_token(config, size),
    )
    runner = random_runner(config, options, coded=coded)
    for choice in runner.kernels:
        if choice.reason:
            task.add(Row(f"kernel {choice.op}", verdict=WRONG, note=f"{choice.backend} serves: {choice.reason}"))
    return runner


def decode(task: Task, name: str, form: str) -> None:
    """name: of `MODELS`. form: "numbers" or "codes"."""
    config, coded = MODELS[name], form == "codes"
    batches, prompt, steps = ((2,), 5, 1) if task.dry else (BATCHES, PROMPT_TOKENS, STEPS)
    tokens = prompt + 2 * (WARM_UPS + steps)
    bandwidth = copy_bandwidth(task.device) if not task.dry else copy_bandwidth(task.device, 1, 1 << 20)
    start = time.perf_counter()
    runner = load(task, config, batches[-1], tokens, coded=coded)
    kind = f"{name}, {'4 bits' if coded else str(runner.dtype).removeprefix('torch.')}"
    figures = {"rate": rate_text(bandwidth)}
    task.add(
        Row(f"{kind}: loaded", figures, note=f"in {time.perf_counter() - start:.1f} s; the rate is the card's own")
    )
    prepared = False
    for batch in batches:
        if not task.fits(f"{kind}, batch {batch}", 0 if task.dry else ONE_BATCH_S):
            return
        requests = Requests(runner, batch, prompt, tokens)
        for mode in (PLAIN, GRAPHS):
            if mode == GRAPHS and not prepared:  # after the first plain figure, which no failing capture can spoil
                runner.prepare()
                prepared = True
                _tell_faults(task, kind, runner)
            if mode == GRAPHS and runner.recorder.faults():
                continue
            seconds = requests.step_seconds(steps, recorded=mode == GRAPHS)
            share = step_bytes(runner, batch, prompt + WARM_UPS + steps) / bandwidth / seconds
            figures = {"tok/s": f"{batch / seconds:.0f}", "ms": f"{seconds * 1e3:.2f}", "of the roof": f"{share:.0%}"}
            judged = (name, form, batch, mode) == JUDGED
            task.add(Row(f"{kind}, batch {batch}, {mode}", figures, verdict(share, TARGET) if judged else ""))
        requests.forget()


def _tell_faults(task: Task, kind: str, runner: ModelRunner) -> None:
    faults = "; ".join(runner.recorder.faults())
    if faults:
        task.add(Row(f"{kind}, {GRAPHS}", verdict=LEFT_OUT if task.dry else WRONG, note=faults))


def step_bytes(runner: ModelRunner, batch: int, context: float) -> float:
    """What a decode step has to read."""
    embedding = 0 if runner.config.tie_word_embeddings else next(iter(runner.model.weights())).nbytes
    keys = batch * context * kv_bytes_per_token(runner.config, runner.dtype.itemsize)
    return runner.weights_bytes - embedding + keys


class Requests:
    """Requests whose prompts are in the cache, and the steps that follow."""

    def __init__(self, runner: ModelRunner, batch: int, prompt: int, tokens: int) -> None:
        """prompt, tokens: of each request, at the beginning and at most."""
        self._runner, self._script = runner, Script(tokens)
        self._names = [f"request {index}" for index in range(batch)]
        for index, name in enumerate(self._names):
            ids = [(index + token) % runner.config.vocab_size for token in range(prompt)]
            runner.execute(self._script.plan((name, ids)))

    def step_seconds(self, steps: int, *, recorded: bool) -> float:
        """Of a decode step of all, the median."""
        runner, recorder, seconds = self._runner, self._runner.recorder, []
        if not recorded:
            runner.recorder = Eager()
        for step in range(WARM_UPS + steps):
            plan = self._script.plan(*((name, [1 + step]) for name in self._names))
            synchronize(runner.device)
            start = time.perf_counter()
            result = runner.execute(plan)
            seconds.append(time.perf_counter() - start)
            if result.faults:
                raise RuntimeError(f"a row has no token: {next(iter(result.faults.values()))}")
        runner.recorder = recorder
        return statistics.median(seconds[WARM_UPS:])

    def forget(self) -> None:
        """Frees their blocks."""
        self._runner.forget(self._script.forget())
