"""The KV map with 40,000 blocks: one image an update, several blocks a cell, opened by a click; scripted."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Route, WebSocketRoute, expect

from tests.browser import Tab
from tests.ui.kv_map_page import mount_map

BLOCKS = 40_000
OWNERS = 64
UPDATES = 3
CACHED, HELD = 1, 2

# Every call that draws or makes a picture is counted, by name and by the canvas it falls on.
COUNT_CALLS = """() => {
  const calls = (window.drawCalls = {});
  const proto = CanvasRenderingContext2D.prototype;
  for (const name of Object.getOwnPropertyNames(proto)) {
    const { value } = Object.getOwnPropertyDescriptor(proto, name);
    if (typeof value !== "function") continue;
    proto[name] = function (...given) {
      const key = `${this.canvas.className} ${name}`;
      calls[key] = (calls[key] ?? 0) + 1;
      return value.apply(this, given);
    };
  }
}"""


def view(number: int) -> dict[str, Any]:
    """Owners in stripes of three blocks, every ninth shared, then cached and free blocks."""
    runs: list[int] = []
    for first in range(1, 30_001, 3):
        refs = 2 if first % 27 == 1 else 1
        runs += [first, 3, HELD | refs << 17, (first // 3 + number) % OWNERS]
    runs += [30_001, 5_000, CACHED, -1, 35_001, 5_000, 0, -1]
    owner = {"index": 0, "num_prompt_tokens": 9, "num_tokens": 10, "num_computed_tokens": 9, "num_cached_tokens": 0}
    counts = dict.fromkeys(("shared", "partial", "empty_slots", "ahead", "num_running", "num_waiting"), 0)
    totals = ("evictions_total", "preemptions_total", "prefix_queries_total", "prefix_hits_total")
    return {
        "kind": "full",
        "after": None,
        "engine_run_id": "e",
        "number": number,
        "t": 1e9 + number,
        "num_blocks": BLOCKS,
        "block_size": 16,
        "windows": [0],
        "counts": counts | dict.fromkeys(totals, 0) | {"total": BLOCKS, "held": 30_000, "cached": 5_000, "free": 5_000},
        "rates": {"evictions_per_min": None, "preemptions_per_min": None},
        "owners": [
            {"id": each, "request_id": f"request-{each}", "blocks": 469, "shared": 0, "ahead": 0} | owner
            for each in range(OWNERS)
        ],
        "runs": runs,
    }


class Server:
    """Answers the page from `view`."""

    def __init__(self, tab: Tab) -> None:
        self.page = tab.page
        self.number = 1
        self.socket: WebSocketRoute | None = None
        self.page.route("**/api/**", self.answer)
        self.page.route_web_socket("**/api/live", self.open)

    def open(self, socket: WebSocketRoute) -> None:
        self.socket = socket

    def answer(self, route: Route) -> None:
        url = route.request.url
        if "/history" in url:
            route.fulfill(json={"t": [], "columns": {}})
        elif "block=" in url:
            block: dict[str, Any] = {"hash": None, "age_s": 1.5, "hits": None, "group": 0, "owners": []}
            route.fulfill(json={"block": block})
        elif "owner=" in url:
            route.fulfill(json={"table": {"tables": [{"passed": 0, "blocks": [1, 2, 3]}]}})
        else:
            route.fulfill(json=view(self.number))

    def push(self) -> None:
        assert self.socket is not None
        self.number += 1
        data = view(self.number)
        self.socket.send(json.dumps({"topic": "blocks:e", "seq": self.number, "t": 0, "data": data}))
        self.page.wait_for_function(f"window.kvMap.newestNumber === {self.number}")
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_forty_thousand_blocks(tab: Tab) -> None:
    page, server = tab.page, Server(tab)
    page.goto(tab.url)
    mount_map(page, "e")
    canvas = page.locator(".pz-kv-map")
    expect(page.locator("[data-count=held]")).to_have_text("30,000 · 75 %")
    expect(canvas).to_have_attribute("data-per-cell", "3")

    page.evaluate(COUNT_CALLS)
    for _ in range(UPDATES):
        server.push()
    calls: dict[str, int] = page.evaluate("window.drawCalls")
    drawn = {name: times for name, times in calls.items() if not name.startswith("pz-kv-strip ")}
    # an update is one image in one go, whatever the number of blocks: no call a cell, no new buffer
    cells, over = "pz-kv-cells", "pz-kv-over"
    assert drawn == dict.fromkeys((f"{cells} putImageData", f"{over} setTransform", f"{over} clearRect"), UPDATES)

    canvas.hover(position={"x": 30, "y": 2})
    expect(page.locator(".pz-kv-detail h3")).to_contain_text("Blocks ")
    canvas.click(position={"x": 30, "y": 2})
    expect(canvas).to_have_attribute("data-per-cell", "1")
    expect(page.locator(".pz-kv-card [role=status]").first).to_contain_text("showing ")
    page.get_by_role("button", name="All blocks").click()
    expect(canvas).to_have_attribute("data-per-cell", "3")
    canvas.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".pz-kv-detail h3")).to_have_text("Blocks 7 to 9")
    assert tab.problems == []
