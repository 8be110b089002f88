"""/v1/responses: OpenAI's Responses API.

Owns the way from its body to its answer, whole or streamed, and to what is kept of earlier ones. Knows nothing of items
or events. Invariant: either form of an answer ends its request in the engine when the client goes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from app.dialects.answer_shapes import note_ignored
from app.dialects.prepared import prepare_chat
from app.dialects.response_store import StoredResponse
from app.dialects.responses_answer import ResponseAnswer
from app.dialects.responses_request import chat_body, in_responses_terms
from app.dialects.responses_schemas import ITEMS, AnyItem, ResponsesBody
from app.errors import ApiError
from app.services import Services, services
from app.streaming import EventStream, named_event, server_stopping, unless_disconnected

router = APIRouter(prefix="/v1/responses", tags=["OpenAI"])

GONE = "It was asked for with store: false, newer ones have taken its room, or the server has been restarted since"


@router.post("", response_model=None)
async def create_response(body: ResponsesBody, request: Request, parts: Services = Depends(services)) -> Response:
    ignored = body.checked()
    history = _history(parts, body.previous_response_id)
    try:
        chat = await prepare_chat(parts, chat_body(body, history))
    except ApiError as error:
        raise in_responses_terms(error) from error
    answer = ResponseAnswer(body, chat, history, parts.responses)
    response: Response
    if body.stream:
        response = EventStream(_sent(answer), {}, lambda: "".join(map(named_event, answer.failure(server_stopping()))))
    else:
        whole = await unless_disconnected(request, answer.whole())
        if whole is None:
            return Response(status_code=499)  # nobody is there to read it
        response = JSONResponse(whole)
    note_ignored(response, ignored + chat.ignored)
    return response


@router.get("/{response_id}", response_model=None)
async def get_response(response_id: str, parts: Services = Depends(services)) -> Response:
    stored = _found(parts.responses.get(response_id), response_id)
    return Response(stored.body, media_type="application/json")


@router.delete("/{response_id}")
async def delete_response(response_id: str, parts: Services = Depends(services)) -> dict[str, Any]:
    _found(parts.responses.pop(response_id), response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _sent(answer: ResponseAnswer) -> AsyncGenerator[str]:
    async with aclosing(answer.events()) as events:
        async for event in events:
            yield named_event(event)


def _history(parts: Services, response_id: str | None) -> list[AnyItem]:
    """The conversation up to a response and its own items. Raises ApiError."""
    if response_id is None:
        return []
    stored = parts.responses.get(response_id)
    if stored is None:
        detail = f"there is no response {response_id!r} to go on from. {GONE}"
        remedy = "Send the conversation's items as input instead"
        raise ApiError(400, detail, param="previous_response_id", remedy=remedy, code="previous_response_not_found")
    return ITEMS.validate_json(stored.conversation)


def _found(stored: StoredResponse | None, response_id: str) -> StoredResponse:
    if stored is None:
        raise ApiError(404, f"there is no response {response_id!r}", param="response_id", remedy=GONE, code="not_found")
    return stored
