"""Raw completions over the app's own HTTP API, for the playground.

Owns the request body and the reading of the event stream. Knows nothing of Gradio's components.
Invariant: closing the generator closes the connection, which aborts the request in the engine.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class CompletionFields:
    """What the playground's form holds. None means: the server's default."""

    prompt: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def body(self, model: str) -> dict[str, Any]:
        """The body of POST /v1/completions."""
        fields = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        return fields | {"model": model, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(slots=True)
class Completion:
    """What has arrived so far. `error` is the server's own sentence."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    seed: int | None = None
    error: str | None = None

    def take(self, chunk: dict[str, Any]) -> None:
        """Add one event of the stream."""
        if error := chunk.get("error"):
            self.error = str(error.get("message", error))
        for choice in chunk.get("choices", ()):
            self.text += choice.get("text") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.usage = chunk.get("usage") or self.usage
        self.seed = chunk.get("seed", self.seed)


async def first_model(client: httpx.AsyncClient) -> str | None:
    """The model that answers when none is named, or None when nothing is loaded."""
    response = await client.get("/v1/models")
    response.raise_for_status()
    models = response.json()["data"]
    return str(models[0]["id"]) if models else None


async def stream_completion(
    client: httpx.AsyncClient, model: str, fields: CompletionFields
) -> AsyncIterator[Completion]:
    """The completion as it grows. An answer other than 200 comes out as its `error`, never as an exception."""
    completion = Completion()
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    async with client.stream("POST", "/v1/completions", json=fields.body(model), timeout=timeout) as response:
        if response.status_code != httpx.codes.OK:
            completion.take(json.loads(await response.aread()))
            yield completion
            return
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                completion.take(json.loads(line.removeprefix("data: ")))
                yield completion
