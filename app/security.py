"""Who may talk to the server: Host and Origin on every call, the API key where one is set.

Owns the checks in front of every route, the WebSocket and the mounted pages. Knows nothing of what lies behind.
Invariant: a web page of another site can neither read from nor post to this server, and an address beyond loopback is
never open without a key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from http.cookies import SimpleCookie
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError, error_response
from app.settings import Settings

SESSION_COOKIE = "pizarra_session"
OPEN_PATHS = frozenset({"/health", "/login"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = ("0.0.0.0", "::", "")


def session_token(key: str) -> str:
    """What the login cookie holds: proof of the key, not the key."""
    return hmac.new(key.encode(), b"pizarra session", hashlib.sha256).hexdigest()


class Gatekeeper:
    """The ASGI layer that lets a call through or answers it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._key = settings.api_key.get_secret_value() if settings.api_key is not None else None
        self._hosts = set(_LOOPBACK_NAMES | set(_lower(settings.allowed_hosts)) | {settings.host.lower()})
        self._any_address = settings.host in _WILDCARDS
        if self._any_address:
            self._hosts.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        error = self._refusal(scope["path"], headers)
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4403, "reason": error.detail[:120]})
        else:
            await self._answer(scope, headers, error)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if not self._known_host(host):
            return ApiError(
                403,
                f"this server is not known by the host name {host!r}",
                remedy="Use 127.0.0.1 or localhost, or add the name to PIZARRA_ALLOWED_HOSTS",
                code="foreign_host",
            )
        origin = headers.get("origin")
        if origin is not None and _split(origin).netloc.lower() != host.lower():
            return ApiError(403, f"requests from pages of {origin!r} are not accepted", code="foreign_origin")
        if "/proxy=" in path:
            return ApiError(403, "this server is no proxy", code="no_proxy")
        if self._key is not None and path not in OPEN_PATHS and not self._has_key(headers):
            return ApiError(
                401,
                "this server needs its API key",
                remedy="Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY', or log in at /login",
                code="invalid_api_key",
            )
        return None

    def _known_host(self, host: str) -> bool:
        name = _split(f"//{host}").hostname or ""
        if name in self._hosts:
            return True
        if not self._any_address:
            return False
        try:  # an address cannot be a rebound name, so on a wildcard bind every one of them is ours
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_key(self, headers: Headers) -> bool:
        assert self._key is not None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._key.encode()):
            return True
        if hmac.compare_digest(headers.get("x-api-key", "").strip().encode(), self._key.encode()):
            return True
        session = SimpleCookie(headers.get("cookie", "")).get(SESSION_COOKIE)
        return session is not None and hmac.compare_digest(session.value.encode(), session_token(self._key).encode())

    def _answer(self, scope: Scope, headers: Headers, error: ApiError) -> Response:
        wants_page = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
        if error.status == 401 and wants_page:
            return RedirectResponse("/login", status_code=303)
        challenge = {"www-authenticate": "Bearer"} if error.status == 401 else None
        return error_response(scope["path"], error, challenge)


def _split(url: str) -> SplitResult:
    """The parts of a URL; none of something that is not one."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}
