"""A server with the dashboard's files but without the app, for tests of the browser modules alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from playwright.sync_api import Browser

from tests.browser import Tab, open_tab
from ui.static import serve_assets


def _blank() -> HTMLResponse:
    return HTMLResponse('<!doctype html><link rel="icon" href="/assets/icons/favicon.svg"><main></main>')


@pytest.fixture(scope="session")
def assets_url() -> Iterator[str]:
    app = FastAPI()
    app.add_api_route("/", _blank)
    serve_assets(app)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "the test server did not start in 20 s"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def tab(assets_url: str, browser: Browser) -> Iterator[Tab]:
    """A blank page from which the ES modules can be imported."""
    with open_tab(browser, assets_url) as opened:
        opened.page.goto(assets_url)
        yield opened
