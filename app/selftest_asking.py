"""The requests of a self-test: its prompts, and the way to the engine and back.

Owns the prompts and how they are sent. Knows nothing of what the answers are compared with. Invariant: however an
asking ends, the engine is told to end its request.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.errors import ApiError
from app.loaded_engine import Engine
from engine.core.outputs import RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from engine.protocol import AddRequest

T = TypeVar("T")

PRIORITY = 1000  # whoever else asks comes first
MOST_SAMPLES = 128  # of one request
SEED_STEP = 1_000_003  # between the seeds of one arm of samples

# name -> text that is continued; each holds something that can be drafted from what stands before
TEXTS: Mapping[str, str] = {
    "copying": "red, green, blue, white; red, green, blue, white; red, green, blue, white; red, green,",
    "weather": "Today is warm and sunny. Tomorrow is cold and rainy. Today is warm and dry. Tomorrow is",
    "code": "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n",
    "json": '[{"id": 1, "name": "Ana", "age": 30}, {"id": 2, "name": "Leo", "age": 41}, {"id": 3, "name":',
}
CHAT = "Name three animals that live in the sea, and say one thing about each of these animals."
FOR_SAMPLES = ("copying", "weather")  # one of a few likely goings-on, one of many


class AskError(Exception):
    """The engine refused a request of the self-test."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """for_samples: its first tokens are sampled many times, too."""

    name: str
    token_ids: list[int]
    for_samples: bool = False


@dataclass(slots=True)
class Answer:
    """margins: of each token, by how much the likeliest one was ahead of the next, in nats; where logprobs were asked
    for."""

    token_ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    def take(self, row: RequestOutput) -> None:
        self.token_ids += row.token_ids
        if row.logprobs is not None:
            self.margins += [top[0] - top[1] for top in row.logprobs.top_logprobs if len(top) > 1]
        if row.summary is not None:
            self.drafted, self.accepted = row.summary.drafted, row.summary.accepted


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first error, after the others were cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(each) for each in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in started]


class Asker:
    """Asks one engine."""

    def __init__(self, engine: Engine, salt: str) -> None:
        self._engine = engine
        self._salt = salt

    async def prompts(self, room: int) -> list[Prompt]:
        """The prompts, the last tokens of them where the context holds no more beside `room`."""
        vocab, most = self._engine.vocab, max(1, self._engine.ready.max_model_len - room)
        found = [
            Prompt(name, vocab.encode(text, add_special_tokens=True)[-most:], name in FOR_SAMPLES)
            for name, text in TEXTS.items()
        ]
        try:
            chat = await self._engine.chat_prompt([{"role": "user", "content": CHAT}])
        except ApiError:
            return found  # a model without a chat template
        return [*found, Prompt("chat", chat[-most:])]

    async def one(self, prompt: Prompt, sampling: SamplingParams, speculation: SpeculationParams) -> Answer:
        """One answer. Raises EngineGone, AskError."""
        return (await self._ask(prompt.token_ids, sampling, speculation, 1))[0]

    async def samples(
        self, prompt: Prompt, sampling: SamplingParams, speculation: SpeculationParams, count: int, *, arm: int
    ) -> list[Answer]:
        """Independent answers, with seeds that no other arm has. Raises EngineGone, AskError."""
        sizes = [min(MOST_SAMPLES, count - start) for start in range(0, count, MOST_SAMPLES)]
        asked = [
            self._ask(prompt.token_ids, replace(sampling, seed=arm * SEED_STEP + number), speculation, size)
            for number, size in enumerate(sizes)
        ]
        return [answer for answers in await together(asked) for answer in answers]

    async def _ask(
        self, token_ids: Sequence[int], sampling: SamplingParams, speculation: SpeculationParams, count: int
    ) -> list[Answer]:
        client = self._engine.supervisor.client
        message = AddRequest(
            uuid.uuid4().hex,
            list(token_ids),
            sampling,
            priority=PRIORITY,
            cache_salt=self._salt,
            n=count,
            speculation=speculation,
        )
        answers = [Answer() for _ in range(count)]
        stream = client.submit(message)
        try:
            while not stream.finished:
                row = await stream.next()
                if row.finish_reason == "error":
                    raise AskError(row.error or "the engine gave no reason")
                answers[row.index].take(row)
        finally:
            if not stream.finished:
                client.abort(message.request_id)
        return answers
