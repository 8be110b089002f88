"""/v1: the OpenAI-compatible calls.

Owns the way from a body to an answer, whole or streamed. Knows nothing of engines beyond asking which one serves a
model. Invariant: a streamed answer and a whole one carry the same text, usage and finish reasons, and either ends its
request in the engine when the client goes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from app.dialects.answer_shapes import ChatShape, Shape, TextShape, envelope, note_ignored, usage
from app.dialects.openai_schemas import ChatCompletionBody, CompletionBody, CompletionFields
from app.dialects.prepared import prepare_chat, prepare_completion
from app.dialects.several import pieces_of_all
from app.dialects.speculation_usage import ignored_wish, with_speculation
from app.engines import Engine
from app.errors import ApiError, openai_body
from app.generation import Generation
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
    shape = ChatShape(chat.generation, body, chat.plan)
    return await _answer([Answer(shape, chat.generation)], body, request, ignored + chat.ignored)


@router.post("/completions", response_model=None)
async def completions(body: CompletionBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.checked()
    given = body.prompts
    generations = [await prepare_completion(parts, body, each) for each in given]
    answers = [
        Answer(TextShape(generation, body, prompt if isinstance(prompt, str) else None), generation, number)
        for number, (prompt, generation) in enumerate(zip(given, generations, strict=True))
    ]
    ignored += ignored_wish(body.speculation, generations[0].engine)
    return await _answer(answers, body, request, ignored)


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's generation and how its choices look. number: which of the request's prompts it is."""

    shape: Shape
    generation: Generation
    number: int = 0

    @property
    def num_choices(self) -> int:
        return len(self.generation.samples)

    def numbered(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A choice with its place among all of the request's: a prompt's samples stand together, in OpenAI's order."""
        return {**choice, "index": self.number * self.num_choices + choice["index"]}


async def _answer(answers: Sequence[Answer], body: CompletionFields, request: Request, ignored: list[str]) -> Response:
    response: Response
    if body.stream:
        events = _events(answers, body.include_usage)
        response = EventStream(events, {}, _event(openai_body(server_stopping())))
    else:
        choices = await unless_disconnected(request, _choices(answers))
        if choices is None:
            return Response(status_code=499)  # nobody is there to read it
        head = envelope(answers[0].shape, answers[0].generation, answers[0].shape.whole)
        tail = {"usage": _usage(answers), **_seed(answers)}
        response = JSONResponse({**head, "choices": choices, **tail})
    note_ignored(response, ignored)
    return response


async def _choices(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    texts = [["" for _ in range(each.num_choices)] for each in answers]
    tokens: list[list[list[TokenLogprob]]] = [[[] for _ in range(each.num_choices)] for each in answers]
    async with aclosing(pieces_of_all([each.generation for each in answers])) as pieces:
        async for number, piece in pieces:
            texts[number][piece.index] += piece.text
            tokens[number][piece.index] += piece.logprobs
    return [
        each.numbered(each.shape.choice(index, texts[each.number][index], tokens[each.number][index]))
        for each in answers
        for index in range(each.num_choices)
    ]


async def _events(answers: Sequence[Answer], include_usage: bool) -> AsyncGenerator[str]:
    head = envelope(answers[0].shape, answers[0].generation, answers[0].shape.chunk)
    tail = {"usage": None} if include_usage else {}
    everyone = [(each.number, index) for each in answers for index in range(each.num_choices)]
    unopened = set(everyone)

    def event(number: int, choice: dict[str, Any]) -> str:
        return _event({**head, "choices": [answers[number].numbered(choice)], **tail})

    def opened(choices: Iterable[tuple[int, int]]) -> list[str]:
        """The events that come before anything else of these choices."""
        due = sorted(unopened.intersection(choices))
        unopened.difference_update(due)
        openings = [(number, answers[number].shape.opening(index)) for number, index in due]
        return [event(number, opening) for number, opening in openings if opening is not None]

    try:
        async with aclosing(pieces_of_all([each.generation for each in answers])) as pieces:
            if not answers[0].shape.waits_for_prompt:
                for text in opened(everyone):
                    yield text
            async for number, piece in pieces:
                for text in opened([(number, piece.index)]):
                    yield text
                delta = answers[number].shape.delta(piece.index, piece.text, piece.logprobs)
                if delta is not None:
                    yield event(number, delta)
    except ApiError as error:
        yield _event(openai_body(error))
        return
    for text in opened(everyone):
        yield text
    tail = {**_seed(answers), **tail}
    for number, index in everyone:
        yield event(number, answers[number].shape.closing(index))
    if include_usage or answers[0].generation.message.trace:
        yield _event({**head, "choices": [], "usage": _usage(answers)})
    yield "data: [DONE]\n\n"


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    generations = [each.generation for each in answers]
    return with_speculation(usage(*generations), generations)


def _seed(answers: Sequence[Answer]) -> dict[str, Any]:
    """The seed that was drawn with, where the request has one: several prompts without a seed have one each."""
    seeds = {each.generation.row.seed for each in answers}
    return {"seed": seeds.pop()} if len(seeds) == 1 else {}


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
