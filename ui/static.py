"""The files the browser asks for: styles, scripts, icons, texts, and Plotly.js from the installed package.

Owns their routes and cache headers. Invariant: everything comes from this machine; no page names another host.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request, Response
from plotly.offline import get_plotlyjs
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PLOTLY_URL = "/assets/plotly.min.js"
ASSETS = Path(__file__).resolve().parent.parent / "assets"
SERVED_FOLDERS = ("css", "js", "icons", "i18n")


class RevalidatedFiles(StaticFiles):
    """Static files that the browser asks about each time, so that an upgraded server is never half old, half new."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


@cache
def _plotly() -> tuple[bytes, str]:
    """Plotly.js, compressed once (a fifth of its 5 MB), and its entity tag."""
    script = get_plotlyjs().encode("utf-8")
    return gzip.compress(script, compresslevel=6), f'"{hashlib.blake2b(script, digest_size=12).hexdigest()}"'


def plotly_script(request: Request) -> Response:
    """Plotly.js: kept by the browser for a day, then confirmed by its tag."""
    body, tag = _plotly()
    headers = {"ETag": tag, "Cache-Control": "private, max-age=86400", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(body, media_type="text/javascript", headers=headers | {"Content-Encoding": "gzip"})
    return Response(gzip.decompress(body), media_type="text/javascript", headers=headers)


def serve_assets(app: FastAPI) -> None:
    """Register the asset routes. Only the folders meant for browsers: the catalogue beside them stays private."""
    app.add_api_route(PLOTLY_URL, plotly_script, include_in_schema=False)
    for folder in SERVED_FOLDERS:
        app.mount(f"/assets/{folder}", RevalidatedFiles(directory=ASSETS / folder), name=f"assets-{folder}")
