"""Screenshots of every page, both themes, both widths: `make screenshots` writes docs/images/dashboard/.

Owns the little life that the pages show: a server with the default model on a data folder of its own, some chats, a
traced answer, a race, and requests while the KV map is drawn. Every figure in them is a real one. Exit status 1: a page
wrote to its console, asked another host, or is wider than its window; each such fault is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page

from bench.servers import PizarraServer, pizarra
from scripts.chromium import find_chromium
from tests.browser import open_browser, open_tab

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "dashboard"
MODEL = "smollm2-135m-instruct"
SIZES = ((1440, 900), (390, 844))
THEMES = ("dark", "light")
COPYING = (
    "Repeat this text twice: The chalkboard hangs on the wall of the old school, and the children write the date on "
    "the chalkboard before the lesson begins."
)
QUESTION = "Write three sentences about chalk and blackboards."
SETTLE_MS = 2500


def main() -> int:
    """The exit status is 0 when no page had a fault."""
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots", description=__doc__)
    parser.add_argument("--pages", nargs="+", help="only these")
    arguments = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        print("there is no Chromium; `make test` installs it where it can", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = next((ROOT / ".cache" / "default-model").rglob("*.gguf"))
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as home, pizarra(Path(home) / "home", {MODEL: model}) as server:
        server.load(MODEL, num_threads=1)
        pages = _live(server)
        wanted = {name: path for name, path in pages.items() if not arguments.pages or name in arguments.pages}
        with open_browser(chromium) as browser:
            for size in SIZES:
                for theme in THEMES:
                    faults += _shoot(browser, server, wanted, size, theme)
    print("\n".join(faults) or "clean")
    return 1 if faults else 0


def _live(server: PizarraServer) -> dict[str, str]:
    """Give the pages something to show. Returned: name -> address."""
    http = server.client
    turns = [{"role": "user", "content": "Plan a week of dinners."}, {"role": "assistant", "content": "Monday: soup."}]
    _post(http, "/api/conversations/import", {"text": json.dumps(turns), "folder": "Home"})
    chat = _post(http, "/api/conversations", {})
    path = f"/api/conversations/{chat['id']}"
    _post(http, f"{path}/generate", {"version": chat["version"], "content": QUESTION})
    server.running.until("answer", lambda: not http.get(path).json()["generating"])
    for number in range(12):
        prompt = "The history of bread " + "is long, " * number
        _post(http, "/v1/completions", {"prompt": prompt, "max_tokens": 80, "temperature": 0})
    message = [{"role": "user", "content": COPYING}]
    asked = {"messages": message, "max_tokens": 120, "temperature": 0, "trace": True}
    traced = _post(http, "/v1/chat/completions", asked)["id"]
    engine = server.engine()["id"]
    race = {"messages": message, "max_tokens": 96, "temperature": 0, "repeats": 5}
    job = _post(http, f"/api/engines/{engine}/race", race)["job_id"]
    server.running.until("race", lambda: http.get(f"/api/jobs/{job}").json()["finished_at"])
    request = http.get("/api/requests?limit=1").json()["requests"][0]["id"]
    return {
        "overview": "/",
        "chat": f"/chat?c={chat['id']}",
        "playground": "/playground",
        "chalkboard": f"/playground?tab=chalkboard&request={traced}",
        "race": "/playground?tab=race",
        "models": "/models",
        "monitor": "/monitor?range=5m",
        "memory": "/monitor?tab=memory&range=5m",
        "kv-map": "/monitor?tab=kv",
        "speculation": "/monitor?tab=speculation&range=5m",
        "latency": "/monitor?tab=latency&range=5m",
        "requests": "/requests",
        "request": f"/requests?id={request}",
        "settings": "/settings",
        "alerts": "/settings?tab=alerts",
    }


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(path, json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def _shoot(
    browser: Browser, server: PizarraServer, pages: dict[str, str], size: tuple[int, int], theme: str
) -> list[str]:
    faults = []
    with open_tab(browser, server.url.rstrip("/"), size=size, theme=theme) as tab:
        for name, path in pages.items():
            with _busy(server) if name == "kv-map" else _idle():
                page = tab.go(path)
                if name == "playground":
                    _complete(page)
                page.wait_for_timeout(SETTLE_MS)
                _save(page, FOLDER / f"{name}-{theme}-{size[0]}.webp")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > size[0]:
                faults.append(f"{name}, {theme}, {size[0]}: is {width} px wide")
        faults += [f"{theme}, {size[0]}: {problem}" for problem in tab.problems]
    return faults


def _complete(page: Page) -> None:
    """An answer with one of its tokens looked at."""
    page.get_by_role("textbox").first.fill("Once upon a time, on a chalkboard,")
    page.keyboard.press("Control+Enter")
    page.wait_for_timeout(SETTLE_MS)


@contextmanager
def _busy(server: PizarraServer) -> Iterator[None]:
    """Requests that share a beginning, while the block is left open."""

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=120) as http:
            body = {"prompt": "Once upon a time " * 20, "max_tokens": 400, "n": 3, "temperature": 1, "ignore_eos": True}
            http.post("/v1/completions", json=body)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    yield
    for thread in threads:
        thread.join()


@contextmanager
def _idle() -> Iterator[None]:
    yield


def _save(page: Page, path: Path) -> None:
    """As WebP: a quarter of the bytes, and no difference to the eye."""
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").save(path, quality=85, method=6)


if __name__ == "__main__":
    sys.exit(main())
