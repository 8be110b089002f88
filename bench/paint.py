"""How soon the dashboard's pages show something, how long a day of history takes, and what the KV map takes to draw.

`python -m bench.paint [RUNS]` starts `pizarra serve` with nothing loaded on a month of made-up records (bench.history),
opens each page RUNS times (5) in a profile of its own, and prints when the first content stood; then it asks each tab
of the monitor for 24 h as often, from the click to the last plot in view; then it pushes RUNS maps of 40,000 blocks to
the KV map. Times are of this machine as it is: no test judges them.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser

from bench.history import fill
from bench.servers import PizarraServer, pizarra
from scripts.chromium import REMEDY, find_chromium
from tests.browser import open_browser, open_tab
from tests.ui.kv_map_page import mount_map
from tests.ui.test_kv_map_size import BLOCKS, Server
from ui.pages import PAGES, page_path

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
DAY_S = 86_400
HISTORY_TABS = ("glance", "memory", "latency")  # those that have plots on every machine
DRAWN = """async ([range, spanS]) => {
  const plots = [...document.querySelectorAll('.js-plotly-plot')].filter((node) => {
    const { top, height } = node.getBoundingClientRect();
    return height && top < innerHeight && node._fullLayout.xaxis.type === "date";
  });
  const start = performance.now();
  const drawn = plots.map((node) => new Promise((done) => node.on('plotly_afterplot', () => {
    const [from, to] = node._fullLayout.xaxis.range.map((time) => new Date(time));
    if (Math.abs((to - from) / 1000 - spanS) < 0.05 * spanS) done(performance.now() - start);
  })));
  document.querySelector(`[data-range='${range}']`).click();
  return Math.max(...await Promise.all(drawn));
}"""
BLANK = "<!doctype html><link rel=icon href=/assets/icons/favicon.svg><main></main>"


def first_paints(browser: Browser, url: str, path: str, runs: int) -> list[float]:
    """ms from the navigation's start on, of each visit."""
    found = []
    for _ in range(runs):
        with open_tab(browser, url) as tab:
            found.append(float(tab.go(path).evaluate(FIRST_PAINT)))
    return found


def history_draws(browser: Browser, url: str, tab_name: str, runs: int) -> list[float]:
    """ms from the click on 24 h until every plot in view shows that day, the request included."""
    with open_tab(browser, url) as tab:
        page = tab.go(f"/monitor?tab={tab_name}&range=1h")
        page.wait_for_selector(".js-plotly-plot .main-svg")
        found = []
        for _ in range(runs):
            page.wait_for_timeout(1500)
            found.append(float(page.evaluate(DRAWN, ["24h", DAY_S])))
            page.evaluate(DRAWN, ["1h", 3600])
    return found


def map_draws(browser: Browser, url: str, runs: int) -> list[float]:
    """ms of each draw of a map with all its blocks."""
    with open_tab(browser, url) as tab:
        page, server = tab.page, Server(tab)
        page.route("**/blank", lambda route: route.fulfill(content_type="text/html", body=BLANK))
        page.goto(f"{url}/blank")
        mount_map(page, "e")
        canvas = page.locator(".pz-kv-map[data-draw-ms]")
        canvas.wait_for()
        found = []
        for _ in range(runs):
            server.push()
            found.append(float(canvas.get_attribute("data-draw-ms") or "nan"))
    return found


@contextmanager
def _with_history(folder: Path) -> Iterator[PizarraServer]:
    """A server whose records go back a month."""
    end = math.floor(time.time() / 600) * 600.0
    fill(folder / "pizarra.db", end)
    with pizarra(folder, {}) as server:
        yield server


def main() -> None:
    """See above."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(f"there is no Chromium to open pages with. {REMEDY}")
    with (
        tempfile.TemporaryDirectory() as folder,
        _with_history(Path(folder)) as server,
        open_browser(chromium) as browser,
    ):
        url = server.url.rstrip("/")
        for name in PAGES:
            times = first_paints(browser, url, page_path(name), runs)
            print(f"{name:12s} first paint {statistics.median(times):6.0f} ms, {max(times):6.0f} at most")
        for name in HISTORY_TABS:
            times = history_draws(browser, url, name, runs)
            print(f"{name:12s} 24 h drawn {statistics.median(times):6.0f} ms, {max(times):6.0f} at most")
        times = map_draws(browser, url, runs)
        print(f"KV map of {BLOCKS} blocks: a draw {statistics.median(times):.2f} ms, {max(times):.2f} at most")


if __name__ == "__main__":
    main()
