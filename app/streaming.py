"""Answers that belong to their connection: when the client goes, the work ends.

Owns the two ways to hold to that, for streamed and for whole answers. Knows nothing of the work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.errors import ApiError

T = TypeVar("T")


def server_stopping() -> ApiError:
    """What a client is told whose answer is cut because the server ends."""
    return ApiError(503, "the server is stopping; the answer was cut", remedy="Ask again later", code="server_stopping")


DISCONNECT_POLL_S = 0.1


def named_event(content: Mapping[str, Any]) -> str:
    """A server-sent event that has its type as its name."""
    return f"event: {content['type']}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n"


class EventStream(StreamingResponse):
    """Server-sent events from a generator that is closed, at the latest, when the response ends for any reason.

    `farewell` is the last event where a stopping server cuts the answer, or makes it once it is known what came before.
    """

    def __init__(
        self, events: AsyncGenerator[str], headers: Mapping[str, str], farewell: str | Callable[[], str]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache", **headers})
        self._events = events
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:  # from outside: a client that goes is noticed inside and cancels nothing here
            await self._events.aclose()
            farewell = self._farewell if isinstance(self._farewell, str) else self._farewell()
            await send({"type": "http.response.body", "body": farewell.encode(), "more_body": False})
        finally:
            await self._events.aclose()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's result, or None when the client went first; the work is cancelled then.

    A stopping server cancels the caller, whose client then gets the error that says so.
    """
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait([task], timeout=DISCONNECT_POLL_S))[0]:
            if await request.is_disconnected():
                return None
        return task.result()
    except asyncio.CancelledError as error:
        raise server_stopping() from error
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
