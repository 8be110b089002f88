"""Webhooks against a program that listens, is slow, fails, sends one elsewhere, or is not there."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.webhooks import MAX_PENDING, Webhooks, address_fault

SECRET = "a-secret-in-the-address"


class Listener(ThreadingHTTPServer):
    """Answers with the statuses it is told, the last one for ever, after `delay_s` and once it is `open`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = [204]
        self.delay_s = 0.0
        self.open = threading.Event()
        self.open.set()
        self.location = ""
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{SECRET}"


class Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        assert self.headers["content-type"] == "application/json"
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        time.sleep(self.server.delay_s)
        self.server.open.wait(60)
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        self.send_response(status)
        self.send_header("content-length", "0")
        if self.server.location:
            self.send_header("location", self.server.location)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


class Events:
    def __init__(self) -> None:
        self.added: list[tuple[str, str, str]] = []

    def add(self, kind: str, severity: str, message: str, **data: Any) -> None:
        assert SECRET not in f"{message}{data}"
        self.added.append((kind, severity, message))


@pytest.fixture
def listener() -> Iterator[Listener]:
    server = Listener()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.open.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def webhooks(events: Events) -> Webhooks:
    return Webhooks(events, timeout_s=0.3, waits_s=(0.01, 0.02))  # type: ignore[arg-type]


async def settled(webhooks: Webhooks) -> None:
    deadline = time.monotonic() + 10
    while webhooks._pending:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_delivery_is_one_post_of_json(webhooks: Webhooks, events: Events, listener: Listener) -> None:
    webhooks.send(listener.url, {"state": "firing", "value": 1.5})
    await settled(webhooks)
    assert listener.bodies == [{"state": "firing", "value": 1.5}]
    assert events.added == []


async def test_a_failing_one_is_tried_again(webhooks: Webhooks, events: Events, listener: Listener) -> None:
    listener.statuses = [500, 503, 200]
    webhooks.send(listener.url, {"n": 1})
    await settled(webhooks)
    assert listener.bodies == [{"n": 1}] * 3
    assert events.added == []


async def test_one_that_goes_on_failing_is_told(webhooks: Webhooks, events: Events, listener: Listener) -> None:
    listener.statuses = [500]
    webhooks.send(listener.url, {"n": 1})
    await settled(webhooks)
    assert len(listener.bodies) == 3
    (event,) = events.added
    assert event[:2] == ("webhook", "warning")
    assert "127.0.0.1" in event[2]
    assert "500" in event[2]


async def test_a_slow_one_holds_nobody_up(webhooks: Webhooks, events: Events, listener: Listener) -> None:
    listener.open.clear()  # it answers when this test has ended
    webhooks.send(listener.url, {"n": 1})
    await settled(webhooks)
    assert not listener.open.is_set(), "each try is given up after its time, without an answer"
    assert webhooks._pending == set()
    assert "no answer within 0.3 s" in events.added[0][2]


async def test_one_that_is_not_there_is_told(webhooks: Webhooks, events: Events) -> None:
    delivery = await webhooks.post("http://127.0.0.1:9/hook", {})
    assert (delivery.delivered, delivery.status) == (False, None)
    assert "ConnectError" in str(delivery.error)


async def test_a_redirect_is_not_followed(webhooks: Webhooks, events: Events, listener: Listener) -> None:
    other = Listener()
    listener.statuses, listener.location = [307], other.url
    delivery = await webhooks.post(listener.url, {})
    assert (delivery.delivered, delivery.status) == (False, 307)
    assert len(listener.bodies) == 1
    assert other.bodies == []
    other.server_close()


async def test_too_many_at_once_are_refused_and_shutdown_gives_up(
    webhooks: Webhooks, events: Events, listener: Listener
) -> None:
    listener.delay_s = 0.2
    for n in range(MAX_PENDING + 1):
        webhooks.send(listener.url, {"n": n})
    assert "waiting already" in events.added[0][2]
    await webhooks.shutdown()
    assert not webhooks._pending


@pytest.mark.parametrize("url", ["ftp://x/y", "file:///etc/passwd", "https://", "x", "http://[::1", "http://h:99999/"])
def test_an_address_that_cannot_be_called_is_named(url: str) -> None:
    assert address_fault(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/x", "https://hooks.example/a?b=c", "http://[::1]:80/"])
def test_an_address_that_can_be_called_is_fine(url: str) -> None:
    assert address_fault(url) is None
