"""How soon the dashboard's pages show something, and what the KV map takes to draw.

`python -m bench.paint [RUNS]` starts `pizarra serve` with nothing loaded, opens each page RUNS times (5) in a profile
of its own, and prints when the first content stood; then it pushes RUNS maps of 40,000 blocks to the KV map. Times are
of this machine as it is: no test judges them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from bench.servers import pizarra
from scripts.chromium import REMEDY, find_chromium
from tests.browser import open_browser, open_tab
from tests.ui.kv_map_page import mount_map
from tests.ui.test_kv_map_size import BLOCKS, Server
from ui.pages import PAGES, page_path

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
BLANK = "<!doctype html><link rel=icon href=/assets/icons/favicon.svg><main></main>"


def first_paints(browser: Browser, url: str, path: str, runs: int) -> list[float]:
    """ms from the navigation's start on, of each visit."""
    found = []
    for _ in range(runs):
        with open_tab(browser, url) as tab:
            found.append(float(tab.go(path).evaluate(FIRST_PAINT)))
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


def main() -> None:
    """See above."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(f"there is no Chromium to open pages with. {REMEDY}")
    with (
        tempfile.TemporaryDirectory() as folder,
        pizarra(Path(folder), {}) as server,
        open_browser(chromium) as browser,
    ):
        url = server.url.rstrip("/")
        for name in PAGES:
            times = first_paints(browser, url, page_path(name), runs)
            print(f"{name:12s} first paint {statistics.median(times):6.0f} ms, {max(times):6.0f} at most")
        times = map_draws(browser, url, runs)
        print(f"KV map of {BLOCKS} blocks: a draw {statistics.median(times):.2f} ms, {max(times):.2f} at most")


if __name__ == "__main__":
    main()
