"""/v1/messages: Anthropic's Messages API.

Owns the way from its body to its answer, whole or as events. Knows nothing of blocks beyond their sum. Invariant: a
streamed message and a whole one are the same, and either ends its request in the engine when the client goes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from app.dialects.answer_shapes import note_ignored
from app.dialects.anthropic_blocks import MessageBlocks, whole_content
from app.dialects.anthropic_chat import chat_of, ignored_fields
from app.dialects.anthropic_schemas import MessagesBody, PromptBody, TokensCount
from app.dialects.prepared import chat_prompt, prepare_chat
from app.dialects.speculation_usage import with_speculation
from app.errors import REQUEST_ID_HEADER, ApiError, AsciiJSONResponse, anthropic_body
from app.generation import Generation
from app.services import Services, services
from app.streaming import EventStream, named_event, server_stopping, unless_disconnected

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"])


@router.post("", response_model=None)
async def messages(body: MessagesBody, request: Request, parts: Services = Depends(services)) -> Response:
    engine = parts.engines.serving(body.model)
    chat = chat_of(body, engine)
    ignored = ignored_fields(body, chat, engine)
    prepared = await prepare_chat(parts, chat, clip=True)
    answer = _Answer(prepared.generation, MessageBlocks(prepared.plan.parser()), body.max_tokens)
    response: Response
    if body.stream:
        farewell = named_event(anthropic_body(server_stopping(), answer.request_id))
        response = EventStream(answer.events(), {}, farewell)
    else:
        message = await unless_disconnected(request, answer.whole())
        if message is None:
            return Response(status_code=499)  # nobody is there to read it
        response = AsciiJSONResponse(message)
    response.headers[REQUEST_ID_HEADER] = answer.request_id
    note_ignored(response, sorted({*ignored, *prepared.ignored}))
    return response


@router.post("/count_tokens")
async def count_tokens(body: PromptBody, response: Response, parts: Services = Depends(services)) -> TokensCount:
    engine = parts.engines.serving(body.model)
    chat = chat_of(body, engine)
    note_ignored(response, ignored_fields(body, chat, engine))
    return TokensCount(input_tokens=len(await chat_prompt(engine, chat.messages, chat)))


class _Answer:
    """One message: its head, its content as the engine's text comes, and its end."""

    def __init__(self, generation: Generation, blocks: MessageBlocks, max_tokens: int) -> None:
        self._generation = generation
        self._blocks = blocks
        self._max_tokens = max_tokens
        self.request_id = f"req_{generation.id}"

    async def whole(self) -> dict[str, Any]:
        async with aclosing(self._generation.deltas()) as deltas:
            texts = [text async for text in deltas]
        content = whole_content(self._blocks.feed("".join(texts)) + self._blocks.finish())
        return {**self._head(), "content": content, **self._ending(), "usage": self._usage()}

    async def events(self) -> AsyncGenerator[str]:
        start = {"stop_reason": None, "stop_sequence": None}
        try:
            async with aclosing(self._generation.deltas()) as deltas:
                # how much of the prompt is cached the engine says at the end: the last event corrects this one
                head = {**self._head(), "content": [], **start, "usage": self._usage()}
                yield named_event({"type": "message_start", "message": head})
                yield named_event({"type": "ping"})
                async for text in deltas:
                    for event in self._blocks.feed(text):
                        yield named_event(event)
            for event in self._blocks.finish():
                yield named_event(event)
            yield named_event({"type": "message_delta", "delta": self._ending(), "usage": self._usage()})
        except ApiError as error:
            yield named_event(anthropic_body(error, self.request_id))
            return
        yield named_event({"type": "message_stop"})

    def _head(self) -> dict[str, Any]:
        model = self._generation.engine.model_id
        return {"id": f"msg_{self._generation.id}", "type": "message", "role": "assistant", "model": model}

    def _ending(self) -> dict[str, Any]:
        """Why it ended. Raises ApiError for an answer that was cancelled: no reason of theirs says that."""
        sample = self._generation.samples[0]
        reason: str | None = None
        if sample.matched_stop is not None:
            reason = "stop_sequence"
        elif sample.finish_reason == "stop":
            reason = "tool_use" if self._blocks.has_calls else "end_turn"
        elif sample.finish_reason == "length":
            full = self._generation.message.sampling.max_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        if reason is None:
            raise ApiError(499, "the request was cancelled here before its answer was complete", code="cancelled")
        return {"stop_reason": reason, "stop_sequence": sample.matched_stop}

    def _usage(self) -> dict[str, Any]:
        """Tokens so far. Theirs count as input what was not cached; here nothing is charged for being cached."""
        row = self._generation.row
        prompt, cached = row.num_prompt_tokens or 0, row.num_cached_tokens or 0
        figures = {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": row.num_output_tokens or 0,
        }
        return with_speculation(figures, [self._generation]) if row.finished_at is not None else figures
