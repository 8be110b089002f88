"""The same load through transformers' `generate`, in this process: what people do who have no server.

Owns the batches and the clock inside `generate`. Invariant: every prompt of a batch has the same length, so nothing is
padded, which is the best case there is for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from bench.streams import Answer, Load


class _StepTimes(BaseStreamer):
    """When each step's tokens were there. The first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:  # noqa: ARG002 - the times are all that counts here
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def generate_load(model: Any, prompts: Sequence[Sequence[int]], output_tokens: int, concurrency: int) -> Load:
    """All prompts, in batches of `concurrency`. Greedy; each answer has exactly `output_tokens` tokens."""
    start = time.perf_counter()
    answers: list[Answer] = []
    for first in range(0, len(prompts), concurrency):
        answers += _batch(model, prompts[first : first + concurrency], output_tokens)
    return Load(answers, time.perf_counter() - start)


def _batch(model: Any, prompts: Sequence[Sequence[int]], output_tokens: int) -> list[Answer]:
    token_ids, steps, start = torch.tensor(prompts), _StepTimes(), time.perf_counter()
    with torch.inference_mode():
        whole = model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            min_new_tokens=output_tokens,
            max_new_tokens=output_tokens,
            pad_token_id=0,
            streamer=steps,
        )
    made = whole.shape[1] - token_ids.shape[1]
    arrivals = [moment - start for moment in steps.times[1:]]
    return [Answer(token_ids.shape[1], made, arrivals) for _ in prompts]
