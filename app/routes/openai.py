"""/v1: the OpenAI-compatible calls.

Owns the shapes of answers and events. Knows nothing of engines beyond asking which one serves a model.
Invariant: a streamed answer and a whole one carry the same text, usage and finish reason, and either ends its request
in the engine when the client goes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from app.engines import Engine
from app.errors import ApiError, openai_body
from app.generation import Generation, room_for_output, sampling_params
from app.openai_schemas import ChatCompletionBody, CompletionBody, CompletionFields
from app.services import Services, services
from app.streaming import EventStream, server_stopping, unless_disconnected
from app.text import ChatTemplateError

router = APIRouter(prefix="/v1", tags=["OpenAI"])

MAX_HEADER_LENGTH = 1000
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for raw completion


@dataclass(frozen=True, slots=True)
class Shape:
    """How chat and raw completion differ on the wire."""

    prefix: str
    whole: str
    chunk: str
    chat: bool

    def choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        body = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": 0, **body, "logprobs": None, "finish_reason": finish_reason}

    def delta(self, text: str | None, finish_reason: str | None, *, first: bool = False) -> dict[str, Any]:
        if not self.chat:
            return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish_reason}
        delta = {"role": "assistant"} if first else {}
        if text is not None:
            delta["content"] = text
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


CHAT = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", chat=True)
TEXT = Shape("cmpl", "text_completion", "text_completion", chat=False)


@router.get("/models")
async def list_models(parts: Services = Depends(services)) -> dict[str, Any]:
    return {"object": "list", "data": [_model(parts.engines.serving(name)) for name in parts.engines.loaded_ids()]}


@router.get("/models/{model_id}")
async def get_model(model_id: str, parts: Services = Depends(services)) -> dict[str, Any]:
    return _model(parts.engines.serving(model_id))


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatCompletionBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.ignored_fields()
    engine = parts.engines.serving(body.model)
    if engine.chat is None:
        raise ApiError(400, engine.chat_error, param="messages", remedy="Use /v1/completions", code="no_chat_template")
    try:
        prompt = await asyncio.to_thread(engine.chat.encode, [message.for_template() for message in body.messages])
    except ChatTemplateError as error:
        raise ApiError(400, str(error), param="messages", code="chat_template_error") from error
    limit = room_for_output(engine, len(prompt), body.max_tokens)
    generation = _prepare(parts, engine, prompt, body, limit, "chat")
    return await _answer(CHAT, generation, body, request, ignored)


@router.post("/completions", response_model=None)
async def completions(body: CompletionBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.ignored_fields()
    engine = parts.engines.serving(body.model)
    given = body.single_prompt
    if isinstance(given, str):
        prompt = await asyncio.to_thread(engine.vocab.encode, given, add_special_tokens=True)
    else:
        prompt = given
        if prompt and max(prompt) >= engine.ready.vocab_size:
            detail = f"token id {max(prompt)} is outside the vocabulary of {engine.ready.vocab_size}"
            raise ApiError(400, detail, param="prompt", code="invalid_value")
    room = room_for_output(engine, len(prompt), body.max_tokens)
    limit = room if body.max_tokens is not None else min(room, COMPLETION_MAX_TOKENS)
    generation = _prepare(parts, engine, prompt, body, limit, "completion")
    return await _answer(TEXT, generation, body, request, ignored)


def _prepare(
    parts: Services, engine: Engine, prompt: list[int], body: CompletionFields, max_tokens: int, source: str
) -> Generation:
    sampling = sampling_params(max_tokens=max_tokens, **body.sampling_fields)
    return parts.generations.prepare(engine, prompt, sampling, stop=body.stop_strings, source=source)


async def _answer(
    shape: Shape, generation: Generation, body: CompletionFields, request: Request, ignored: list[str]
) -> Response:
    headers = {"x-pizarra-ignored": _header_value(ignored)} if ignored else {}
    if body.stream:
        return EventStream(
            _events(shape, generation, body.include_usage), headers, _event(openai_body(server_stopping()))
        )
    text = await unless_disconnected(request, _whole_text(generation))
    if text is None:
        return Response(status_code=499)  # nobody is there to read it
    row = generation.row
    content = {
        **_envelope(shape, generation, shape.whole),
        "choices": [shape.choice(text, row.finish_reason)],
        "usage": _usage(generation),
        "seed": row.seed,
    }
    return JSONResponse(content, headers=headers)


async def _whole_text(generation: Generation) -> str:
    async with aclosing(generation.deltas()) as deltas:
        return "".join([text async for text in deltas])


async def _events(shape: Shape, generation: Generation, include_usage: bool) -> AsyncGenerator[str]:
    envelope = _envelope(shape, generation, shape.chunk)
    usage = {"usage": None} if include_usage else {}
    try:
        async with aclosing(generation.deltas()) as deltas:
            if shape.chat:
                yield _event({**envelope, "choices": [shape.delta("", None, first=True)], **usage})
            async for text in deltas:
                yield _event({**envelope, "choices": [shape.delta(text, None)], **usage})
    except ApiError as error:
        yield _event(openai_body(error))
        return
    row = generation.row
    yield _event({**envelope, "choices": [shape.delta(None, row.finish_reason)], "seed": row.seed, **usage})
    if include_usage:
        yield _event({**envelope, "choices": [], "usage": _usage(generation)})
    yield "data: [DONE]\n\n"


def _header_value(names: list[str]) -> str:
    """The names as far as a header holds them: printable ASCII, and not without end."""
    text = ", ".join(names)[:MAX_HEADER_LENGTH]
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _envelope(shape: Shape, generation: Generation, kind: str) -> dict[str, Any]:
    return {
        "id": f"{shape.prefix}-{generation.id}",
        "object": kind,
        "created": int(time.time()),
        "model": generation.engine.model_id,
    }


def _usage(generation: Generation) -> dict[str, Any]:
    row = generation.row
    prompt, output = row.num_prompt_tokens or 0, row.num_output_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": row.num_cached_tokens or 0},
    }


def _model(engine: Engine) -> dict[str, Any]:
    return {
        "id": engine.model_id,
        "object": "model",
        "created": int(engine.supervisor.started_at),
        "owned_by": "pizarra",
        "max_model_len": engine.ready.max_model_len,
    }
