"""The page's end of the live feed, against a server that sends what it should not: late, double, with holes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import WebSocketRoute

from tests.browser import Tab

FOLLOW = """async (since) => {
  window.heard = [];
  window.told = 0;
  const { live } = await import("/assets/js/live.js");
  live.onReconnect(() => (window.told += 1));
  window.leave = live.subscribe("talk", (data) => window.heard.push(data), since);
}"""


class FakeServer:
    """The other end of the socket: what the page asked for, and what it is sent."""

    def __init__(self, tab: Tab) -> None:
        self.page = tab.page
        self.asked: list[dict[str, Any]] = []
        self.socket: WebSocketRoute | None = None
        self.page.route_web_socket("**/api/live", self.open)

    def open(self, socket: WebSocketRoute) -> None:
        self.socket = socket
        socket.on_message(lambda text: self.asked.append(json.loads(text)))

    def until_asked(self) -> dict[str, Any]:
        """The next thing that the page asks for."""
        while not self.asked:
            self.page.wait_for_timeout(5)
        return self.asked.pop(0)

    def send(self, *seqs: int, **more: Any) -> None:
        assert self.socket is not None
        for seq in seqs:
            self.socket.send(json.dumps({"topic": "talk", "seq": seq, "t": 0, "data": seq, **more}))

    def heard(self, count: int) -> list[int]:
        self.page.wait_for_function(f"window.heard.length >= {count}")
        found: list[int] = self.page.evaluate("window.heard")
        return found


@pytest.fixture
def server(tab: Tab) -> FakeServer:
    """The page follows the topic from number 5 on."""
    server = FakeServer(tab)
    tab.page.goto(tab.url)
    tab.page.evaluate(FOLLOW, 5)
    assert server.until_asked() == {"subscribe": ["talk"], "since": {"talk": 5}}
    return server


def test_each_number_is_heard_once_and_in_order(server: FakeServer) -> None:
    server.send(4, 5, 6, 6, 7, 5, 8)
    assert server.heard(3) == [6, 7, 8]
    assert server.asked == []


def test_what_lies_before_a_message_is_asked_for_before_it_is_heard(server: FakeServer) -> None:
    server.send(6, 9, 10)
    assert server.until_asked() == {"subscribe": ["talk"], "since": {"talk": 6}}
    assert server.heard(1) == [6]
    server.send(7, 8, 9, 10)
    assert server.heard(5) == [6, 7, 8, 9, 10]
    assert server.asked == [], "it asks once"
    assert server.page.evaluate("window.told") == 0, "nothing is missing in the end"


def test_what_the_server_no_longer_has_is_told(server: FakeServer) -> None:
    server.send(900, data=None, gap=True)
    server.page.wait_for_function("window.told === 1")
    server.send(901)
    assert server.heard(1) == [901]
    server.send(2, gap=True)  # a server with a clock that was put back
    server.send(3)
    assert server.heard(3) == [901, 2, 3]
    assert server.page.evaluate("window.told") == 2


def test_a_new_socket_goes_on_where_the_old_one_ended(server: FakeServer) -> None:
    server.send(6)
    server.heard(1)
    assert server.socket is not None
    server.socket.close()
    assert server.until_asked() == {"subscribe": ["talk"], "since": {"talk": 6}}
    server.send(7)
    assert server.heard(2) == [6, 7]
    assert server.page.evaluate("window.told") == 1


def test_who_follows_anew_hears_again_what_it_left_out(server: FakeServer) -> None:
    """A state older than what was heard: what came after it comes once more; the old subscription does no harm."""
    server.send(6, 7)
    server.heard(2)
    server.page.evaluate("window.leave()")
    server.page.evaluate(FOLLOW, 6)
    server.send(8)  # on its way before the server knew
    assert server.until_asked() == {"unsubscribe": ["talk"]}
    assert server.until_asked() == {"subscribe": ["talk"], "since": {"talk": 6}}
    server.send(7, 8, 9)
    assert server.heard(3) == [7, 8, 9]
