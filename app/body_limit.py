"""How large a request's body may be.

Owns the limit and its enforcement, declared length or not. Knows nothing of what bodies hold. Invariant: no more than
MAX_BODY_BYTES of a body are ever kept in memory.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ApiError, error_response

MAX_BODY_BYTES = 8 * 1024 * 1024  # the text of some two million tokens

_TOO_LARGE = f"the body is larger than the {MAX_BODY_BYTES // 2**20} MiB this server takes"


class BodyLimit:
    """The ASGI layer that answers 413 as soon as a body is known to be too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
            error = ApiError(413, _TOO_LARGE, remedy="Send less", code="body_too_large")
            await error_response(scope["path"], error)(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY_BYTES:  # sent in chunks, which declare nothing
                raise HTTPException(413, _TOO_LARGE)
            return message

        await self._app(scope, limited, send)
