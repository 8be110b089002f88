"""Embeddings: the inputs of one call as requests of the engine, and their vectors.

Owns the checks, how many of the requests run at once, and how a vector is written. Knows nothing of HTTP beyond bodies.
Invariant: a call has a vector for each of its inputs, in their order, or an error and no request left running.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from app.dialects.embedding_schemas import EmbeddingBody, Input
from app.engines import Engine
from app.errors import ApiError
from app.generation import Generation, RequestOptions
from app.services import Services
from engine.core.sampling_params import SamplingParams

SOURCE = "embedding"
NOTHING_DRAWN = SamplingParams()  # the engine draws nothing for them


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """The requests of one call, by the names of their inputs; none has started."""

    engine: Engine
    requests: Mapping[str, Generation]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.row.num_prompt_tokens or 0 for request in self.requests.values())

    async def vectors(self) -> list[list[float]]:
        """Run them, as many at once as the engine serves. Raises the first ApiError, having ended all others."""
        waiting = iter(self.requests.items())
        found: dict[str, list[float]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(self.requests), self.engine.supervisor.options.max_num_seqs)):
                    group.create_task(_work(waiting, found))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [found[name] for name in self.requests]


async def prepare_embeddings(parts: Services, body: EmbeddingBody) -> EmbeddingCall:
    """The requests of a call. Raises ApiError for what can be known to be wrong before one of them runs."""
    engine = parts.engines.serving(body.model)
    given = body.inputs
    token_ids = await asyncio.to_thread(_token_ids, engine, given)
    for name, ids in token_ids.items():
        _check(engine, name, ids)
    options = RequestOptions(
        cache_salt=body.cache_salt or "", priority=body.priority, pooling=body.pooling or "last"
    )  # fmt: skip
    prepare = parts.generations.prepare
    return EmbeddingCall(
        engine,
        {name: prepare(engine, ids, NOTHING_DRAWN, options=options, source=SOURCE) for name, ids in token_ids.items()},
    )


def written(vector: list[float], encoding_format: str | None) -> list[float] | str:
    """A vector as JSON numbers, or as OpenAI's clients read it fastest: base64 of its fp32 values, little-endian."""
    if encoding_format != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def _token_ids(engine: Engine, given: Mapping[str, Input]) -> dict[str, list[int]]:
    """A text is encoded as raw completion encodes its prompt."""
    encode = engine.vocab.encode
    return {
        name: encode(each, add_special_tokens=True) if isinstance(each, str) else each for name, each in given.items()
    }


def _check(engine: Engine, name: str, ids: list[int]) -> None:
    engine.check_token_ids(ids, name)
    if not ids:
        raise ApiError(400, f"{name} has no tokens", param=name, code="empty_prompt")
    context = engine.ready.max_model_len
    if len(ids) > context:
        raise ApiError(
            400,
            f"{name} has {len(ids)} tokens, but the context of {engine.model_id} holds {context}",
            param=name,
            remedy="Cut it into parts, or load the model with a larger max_model_len",
            code="context_length_exceeded",
        )


async def _work(waiting: Iterator[tuple[str, Generation]], found: dict[str, Any]) -> None:
    """Run one request after the other until none waits."""
    for name, request in waiting:
        async with aclosing(request.pieces()) as pieces:
            async for _ in pieces:
                pass  # what has no tokens has no text
        if request.pooled is None:
            detail = f"{name} was cancelled before its embedding was there"
            raise ApiError(503, detail, param=name, remedy="Send the call again", code="cancelled")
        found[name] = request.pooled
