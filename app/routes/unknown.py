"""What no route of /api and /v1 serves: an error in the API's own shape.

Comes last among the routers. Needed because the dashboard, mounted at "/", would take every call that is left over and
answer it in a shape of its own.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.errors import ApiError

router = APIRouter(include_in_schema=False)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@router.api_route("/api/{path:path}", methods=list(METHODS))
@router.api_route("/v1/{path:path}", methods=list(METHODS))
async def unknown(request: Request) -> Response:
    others = [route for route in request.app.routes if route.matches(request.scope)[0] is Match.PARTIAL]
    if others:
        scopes = [{**request.scope, "method": method} for method in METHODS]
        allowed = {scope["method"] for scope in scopes for route in others if route.matches(scope)[0] is Match.FULL}
        raise HTTPException(405, headers={"allow": ", ".join(sorted(allowed))})
    raise ApiError(
        404, f"there is no call {request.method} {request.url.path}", remedy="/docs lists them all", code="unknown_call"
    )
