"""With a key set, nothing but /health and /login answers without it: every route there is, the dashboard's too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app.security import OPEN_PATHS
from app.server import create_app
from tests.app.harness import make_home, make_settings
from ui.pages import PAGES, page_path
from ui.site import mount_site

KEY = "a-key-of-this-test"
REFUSED = (401, 403)  # 403: closed to everyone, such as the proxy that Gradio brings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    home = make_home(tmp_path_factory.mktemp("locked"))
    return mount_site(create_app(make_settings(home, api_key=SecretStr(KEY))))


def flat(routes: list[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every route with its whole path: those of included routers and of the apps mounted beside ours, too."""
    for route in routes:
        path = prefix + (getattr(route, "path", None) or "")
        inner = getattr(route, "original_router", route)
        within = [] if hasattr(route, "endpoint") else list(getattr(inner, "routes", None) or [])
        if within:
            yield from flat(within, path)
        else:
            yield path, route


def test_every_route_is_closed_without_the_key(site: FastAPI) -> None:
    client = TestClient(site, base_url="http://127.0.0.1", follow_redirects=False, raise_server_exceptions=False)
    open_calls, tried = [], set()
    for path, route in flat(list(site.router.routes)):
        filled = re.sub(r"\{(\w+)(:\w+)?\}", r"\1", path) or "/"
        if isinstance(route, WebSocketRoute) or not hasattr(route, "methods"):
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(filled):
                open_calls.append(("WEBSOCKET", path))
            tried.add(path)
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            tried.add(path)
            if path not in OPEN_PATHS and client.request(method, filled).status_code not in REFUSED:
                open_calls.append((method, path))
    assert open_calls == []
    assert tried >= set(site.openapi()["paths"]), "the walk has missed some"
    assert {"/api/live", "/docs", "/api/alerts", "/assets/js"} <= tried


@pytest.mark.parametrize("page", PAGES)
def test_a_page_leads_to_the_login(site: FastAPI, page: str) -> None:
    client = TestClient(site, base_url="http://127.0.0.1", follow_redirects=False)
    answer = client.get(page_path(page), headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
