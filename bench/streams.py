"""A closed load of streamed completions over HTTP, and when each piece of each answer came.

Owns the client and its clock. Works with whatever speaks OpenAI's /v1/completions. Knows nothing of which server that
is. Invariant: an answer that is cut, refused or shorter than asked for is an error, never a figure.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

PATIENCE_S = 600.0


@dataclass(slots=True)
class Answer:
    """One answer's arrivals, in seconds since its request was sent."""

    num_prompt_tokens: int
    num_output_tokens: int = 0
    arrivals: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(slots=True)
class Load:
    """All answers of one load, and how long it took as a whole."""

    answers: list[Answer]
    seconds: float

    @property
    def output_tokens_per_s(self) -> float:
        return sum(answer.num_output_tokens for answer in self.answers) / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        return sum(answer.num_prompt_tokens + answer.num_output_tokens for answer in self.answers) / self.seconds

    @property
    def ttfts(self) -> list[float]:
        return [answer.ttft_s for answer in self.answers]

    @property
    def gaps(self) -> list[float]:
        return [gap for answer in self.answers for gap in answer.gaps]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def run_load(url: str, model: str, prompts: Sequence[Sequence[int]], output_tokens: int, concurrency: int) -> Load:
    """Sends all prompts, never more than `concurrency` at a time; each answer has exactly `output_tokens` tokens."""
    return asyncio.run(_run(url, model, prompts, output_tokens, concurrency))


async def _run(url: str, model: str, prompts: Sequence[Sequence[int]], output_tokens: int, concurrency: int) -> Load:
    waiting = list(reversed(prompts))
    answers: list[Answer] = []

    async def keep_asking(client: httpx.AsyncClient) -> None:
        while waiting:
            answers.append(await ask(client, model, waiting.pop(), output_tokens))

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits, trust_env=False) as client:
        start = time.perf_counter()
        await asyncio.gather(*(keep_asking(client) for _ in range(concurrency)))
        return Load(answers, time.perf_counter() - start)


async def ask(client: httpx.AsyncClient, model: str, prompt: Sequence[int], output_tokens: int) -> Answer:
    """One greedy answer. RuntimeError when it is not all there."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(len(prompt))
    start = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(f"the answer was cut: {event['error']}")
            if any(choice["text"] or choice["finish_reason"] is None for choice in event["choices"]):
                answer.arrivals.append(time.perf_counter() - start)
            if event.get("usage"):
                answer.num_output_tokens = event["usage"]["completion_tokens"]
    if answer.num_output_tokens != output_tokens:
        raise RuntimeError(f"{answer.num_output_tokens} tokens came, {output_tokens} were asked for")
    return answer
