"""The one error type of the HTTP API and its shapes: OpenAI's and Anthropic's on their calls, else problem+json.

Owns the mapping from exceptions to responses. Knows nothing of what went wrong beyond what it is told.
Invariant: a response names what was wrong, where, and the remedy; a traceback goes to the log and never to the user.
"""

from __future__ import annotations

import json
import logging
import uuid
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from db.errors import NotFound, StaleSettings, StaleVersion, StoreError

log = logging.getLogger(__name__)

KINDS = {429: "rate_limit_error"}
OPENAI_PATHS = ("/v1/", "/tokenize", "/detokenize")
ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    503: "overloaded_error",
}
ANTHROPIC_PATH = "/v1/messages"
REQUEST_ID_HEADER = "request-id"


class ApiError(Exception):
    """An answer that is an error.

    param: the request field at fault. remedy: what the caller can do. retry_after_s: when it is worth another try.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        param: str | None = None,
        remedy: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.param = param
        self.remedy = remedy
        self.code = code
        self.retry_after_s = retry_after_s


def openai_body(error: ApiError) -> dict[str, Any]:
    """The error as OpenAI's clients expect it, also as an event inside a stream."""
    kind = "server_error" if error.status >= 500 else KINDS.get(error.status, "invalid_request_error")
    return {"error": {"message": _message(error), "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The error as Anthropic's clients expect it, also as an event inside a stream."""
    kind = ANTHROPIC_KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": _message(error)}, "request_id": request_id}


def problem_body(error: ApiError) -> dict[str, Any]:
    """The error as application/problem+json (RFC 9457)."""
    body: dict[str, Any] = {
        "type": "about:blank" if error.code is None else f"urn:pizarra:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail,
    }
    if error.param is not None:
        body["param"] = error.param
    if error.remedy is not None:
        body["remedy"] = error.remedy
    return body


def _message(error: ApiError) -> str:
    return error.detail if error.remedy is None else f"{error.detail}. {error.remedy}"


class AsciiJSONResponse(JSONResponse):
    """JSON in ASCII: what quotes a caller or a model may hold halves of surrogate pairs, which have no UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


def error_response(path: str, error: ApiError, headers: dict[str, str] | None = None) -> JSONResponse:
    if error.retry_after_s is not None:
        headers = {"retry-after": str(error.retry_after_s), **(headers or {})}
    if path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/"):
        request_id = f"req_{uuid.uuid4().hex}"
        headers = {REQUEST_ID_HEADER: request_id, **(headers or {})}
        return AsciiJSONResponse(anthropic_body(error, request_id), status_code=error.status, headers=headers)
    if path.startswith(OPENAI_PATHS):
        return AsciiJSONResponse(openai_body(error), status_code=error.status, headers=headers)
    return AsciiJSONResponse(
        problem_body(error), status_code=error.status, headers=headers, media_type="application/problem+json"
    )


def validation_error(error: RequestValidationError) -> ApiError:
    """The first thing wrong with a request's fields, in one sentence."""
    errors = error.errors()
    # a field of several types yields one error for each: the deepest belongs to the type that was meant
    first = max((each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]), key=lambda each: len(each["loc"]))
    where = [str(part) for part in first["loc"][1:] if not _names_a_type(part)]
    kind = first["type"]
    if kind == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not valid JSON: {reason} (at character {first['loc'][-1]})", code="bad_json")
    if kind == "extra_forbidden":
        return ApiError(422, f"unknown field {'.'.join(where)!r}", param=".".join(where), code="unknown_field")
    if not where:
        return ApiError(400, "the body must be a JSON object sent as application/json", code="bad_body")
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = repr(first.get("input"))
    found = "" if kind == "missing" or len(shown) > 80 else f" (found {shown})"
    return ApiError(400, f"{'.'.join(where)}: {message}{found}", param=".".join(where), code="invalid_value")


def unreadable_body(cause: BaseException | None) -> ApiError | None:
    """What FastAPI only calls an error while parsing the body, in words; None when it is something else."""
    if isinstance(cause, UnicodeDecodeError):
        return ApiError(400, f"the body is not UTF-8: wrong byte at position {cause.start}", code="bad_json")
    if isinstance(cause, RecursionError):
        return ApiError(400, "the body is not usable JSON: it is nested too deeply", code="bad_json")
    return None


def _names_a_type(part: str | int) -> bool:
    """Whether a part of an error's place is pydantic's name of one type of several, not a field or an index."""
    return isinstance(part, str) and (part in ("str", "int", "constrained-str") or "[" in part)


def install_error_handlers(app: FastAPI) -> None:
    """Every exception that can leave a route becomes one of the shapes."""

    async def on_api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error_response(request.url.path, error)

    async def on_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(request.url.path, validation_error(error))

    async def on_store(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, StaleVersion):
            found = ApiError(409, str(error), param="version", remedy=f"Reload the {error.what}", code="stale_version")
        elif isinstance(error, StaleSettings):
            remedy = "Look at what stands there now, and save again"
            found = ApiError(409, str(error), param=error.names[0], remedy=remedy, code="stale_settings")
        elif isinstance(error, NotFound):
            found = ApiError(404, str(error), code="not_found")
        else:
            log.error("%s %s: %s", request.method, request.url.path, error)
            found = ApiError(503, str(error), code="store_error")
        return error_response(request.url.path, found)

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        found = unreadable_body(error.__cause__)
        if found is None:
            found = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        return error_response(request.url.path, found, dict(error.headers or {}))

    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        log.error("unhandled error in %s %s", request.method, request.url.path, exc_info=error)
        detail = f"an error inside the server: {type(error).__name__}"
        remedy = "The log in the data folder (logs/pizarra.log) has the details"
        return error_response(request.url.path, ApiError(500, detail, remedy=remedy, code="internal_error"))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(StoreError, on_store)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)
