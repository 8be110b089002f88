"""/v1: the OpenAI-compatible calls.

Owns the way from a body to an answer, whole or streamed. Knows nothing of engines beyond asking which one serves a
model. Invariant: a streamed answer and a whole one carry the same text, usage and finish reasons, and either ends its
request in the engine when the client goes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from app.answer_shapes import ChatShape, Shape, TextShape, envelope, note_ignored, usage
from app.engines import Engine
from app.errors import ApiError, openai_body
from app.generation import Generation
from app.openai_schemas import ChatCompletionBody, CompletionBody, CompletionFields
from app.prepared import prepare_chat, prepare_completion
from app.sample_text import TokenLogprob
from app.services import Services, services
from app.streaming import EventStream, server_stopping, unless_disconnected

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.get("/models")
async def list_models(parts: Services = Depends(services)) -> dict[str, Any]:
    return {"object": "list", "data": [_model(parts.engines.serving(name)) for name in parts.engines.loaded_ids()]}


@router.get("/models/{model_id}")
async def get_model(model_id: str, parts: Services = Depends(services)) -> dict[str, Any]:
    return _model(parts.engines.serving(model_id))


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatCompletionBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.checked()
    chat = await prepare_chat(parts, body)
    return await _answer(ChatShape(chat.generation, body, chat.plan), chat.generation, body, request, ignored)


@router.post("/completions", response_model=None)
async def completions(body: CompletionBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.checked()
    generation = await prepare_completion(parts, body)
    given = body.single_prompt
    shape = TextShape(generation, body, given if isinstance(given, str) else None)
    return await _answer(shape, generation, body, request, ignored)


async def _answer(
    shape: Shape, generation: Generation, body: CompletionFields, request: Request, ignored: list[str]
) -> Response:
    response: Response
    if body.stream:
        events = _events(shape, generation, body.include_usage)
        response = EventStream(events, {}, _event(openai_body(server_stopping())))
    else:
        choices = await unless_disconnected(request, _choices(shape, generation))
        if choices is None:
            return Response(status_code=499)  # nobody is there to read it
        head = envelope(shape, generation, shape.whole)
        tail = {"usage": usage(generation), "seed": generation.row.seed}
        response = JSONResponse({**head, "choices": choices, **tail})
    note_ignored(response, ignored)
    return response


async def _choices(shape: Shape, generation: Generation) -> list[dict[str, Any]]:
    texts = ["" for _ in generation.samples]
    tokens: list[list[TokenLogprob]] = [[] for _ in generation.samples]
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            texts[piece.index] += piece.text
            tokens[piece.index] += piece.logprobs
    return [shape.choice(index, texts[index], tokens[index]) for index in range(len(texts))]


async def _events(shape: Shape, generation: Generation, include_usage: bool) -> AsyncGenerator[str]:
    head = envelope(shape, generation, shape.chunk)
    tail = {"usage": None} if include_usage else {}
    unopened = set(range(len(generation.samples)))

    def opened(indexes: Iterable[int]) -> list[str]:
        """The events that come before anything else of these choices."""
        openings = [shape.opening(index) for index in sorted(unopened.intersection(indexes))]
        unopened.difference_update(indexes)
        return [_event({**head, "choices": [opening], **tail}) for opening in openings if opening is not None]

    everyone = list(unopened)
    try:
        async with aclosing(generation.pieces()) as pieces:
            if not shape.waits_for_prompt:
                for event in opened(everyone):
                    yield event
            async for piece in pieces:
                for event in opened([piece.index]):
                    yield event
                delta = shape.delta(piece.index, piece.text, piece.logprobs)
                if delta is not None:
                    yield _event({**head, "choices": [delta], **tail})
    except ApiError as error:
        yield _event(openai_body(error))
        return
    for event in opened(everyone):
        yield event
    for index in everyone:
        yield _event({**head, "choices": [shape.closing(index)], "seed": generation.row.seed, **tail})
    if include_usage:
        yield _event({**head, "choices": [], "usage": usage(generation)})
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _model(engine: Engine) -> dict[str, Any]:
    return {
        "id": engine.model_id,
        "object": "model",
        "created": int(engine.supervisor.started_at),
        "owned_by": "pizarra",
        "max_model_len": engine.ready.max_model_len,
    }
