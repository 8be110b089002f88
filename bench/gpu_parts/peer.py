"""transformers on the same shapes in bf16: the figures that ours stand beside.

Its plain `generate` first, then with a static cache, whose decode step it compiles and captures; the better one counts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch
from transformers import LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

from bench.gpu_parts.end_to_end import BATCHES, PROMPT_TOKENS
from bench.gpu_parts.random_model import MODELS
from bench.gpu_parts.task import LEFT_OUT, Row, Task
from bench.transformers_llama import llama_config
from kernels.roofs import synchronize

NEW_TOKENS = 24
PLAIN_S, COMPILING_S = 5.0, 25.0


def generate(task: Task, name: str) -> None:
    """name: of `MODELS`."""
    config, dtype = MODELS[name], torch.float32 if task.dry else torch.bfloat16
    batches, new = ((1,), 4) if task.dry else (BATCHES, NEW_TOKENS)
    torch.set_default_dtype(dtype)
    with task.device:  # weights are made where they are used
        model: Any = LlamaForCausalLM(llama_config(config))
    model.eval()
    torch.set_default_dtype(torch.float32)
    caches: dict[str, dict[str, Any]] = {"plain": {}}
    if not task.dry:
        caches["static cache"] = {"cache_implementation": "static"}
    for cache, options in caches.items():
        for batch in batches:
            label = f"{name}, {str(dtype).removeprefix('torch.')}, transformers, batch {batch}, {cache}"
            if task.fits(label, 0 if task.dry else COMPILING_S if options else PLAIN_S):
                _timed(task, label, model, batch, options, new)


class Clock(StoppingCriteria):
    """Ends nothing; knows when each token was there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:  # noqa: ARG002
        synchronize(input_ids.device)
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _timed(task: Task, label: str, model: Any, batch: int, options: dict[str, Any], new: int) -> None:
    """Seconds of a token after the second one: the median, in a second run (the first one compiles)."""
    prompts = torch.randint(model.config.vocab_size, (batch, PROMPT_TOKENS), device=task.device)
    clock, length = Clock(), {"min_new_tokens": new, "max_new_tokens": new}
    try:
        for _ in range(2):
            clock = Clock()
            with torch.inference_mode():
                model.generate(
                    prompts,
                    attention_mask=torch.ones_like(prompts),
                    do_sample=False,
                    pad_token_id=0,
                    stopping_criteria=StoppingCriteriaList([clock]),
                    **length,
                    **options,
                )
    except Exception as error:  # the peer's failure is a line of the table, not the end of it
        task.add(Row(label, verdict=LEFT_OUT, note=f"{type(error).__name__}: {str(error)[:200]}"))
        return
    seconds = statistics.median(end - start for start, end in itertools.pairwise(clock.times[1:]))
    task.add(Row(label, {"tok/s": f"{batch / seconds:.0f}", "ms": f"{seconds * 1e3:.2f}"}))
