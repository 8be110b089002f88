"""The dashboard's third of `make soak`: six tabs open on a server that answers all the while.

Owns the tabs and the light load beside them. The server is `pizarra serve` with a tiny random model. It lasts SOAK_S
seconds (900). Every tab must follow to the end (its data no older than STALE_S) without an error on its console or a
request to another host, and neither the app's nor the engine's memory may still grow in the second half.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Browser

from bench.memory_watch import MIN_REQUESTS, MemoryWatch
from bench.servers import PizarraServer, pizarra
from scripts.chromium import find_chromium
from tests.browser import Tab, open_browser, open_tab
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

MODEL = "tiny"
PAGES = ("/", "/chat", "/monitor?tab=memory&range=1h", "/monitor?tab=kv", "/monitor?tab=speculation", "/requests")
DEFAULT_S = 900.0
JUDGED_S = 600.0  # a shorter run is shown, not judged: the buffers of ten minutes still fill
TURN_S = 2.0
STALE_S = 5.0
OPTIONS = {"kv_cache_memory_bytes": 4 << 20, "max_model_len": 512, "num_threads": 1}
AGE_JS = "(await import('/assets/js/live.js')).live.lastMessageAt"


def seconds_wanted() -> float:
    """SOAK_S of the environment. SystemExit for what is no positive number."""
    wish = os.environ.get("SOAK_S", "")
    try:
        seconds = float(wish) if wish else DEFAULT_S
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise SystemExit(f"SOAK_S={wish!r}: give a number of seconds above 0")
    return seconds


def soak(seconds: float) -> list[str]:
    """Runs it. Returns what was wrong, in words."""
    chromium = find_chromium()
    if chromium is None:
        return ["there is no Chromium to open tabs with; `make test` installs it where it can"]
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_llama_checkpoint(Path(folder) / MODEL, max_position_embeddings=512)
        with pizarra(Path(folder) / "home", {MODEL: tiny}) as server, open_browser(chromium) as browser:
            engine = server.load(MODEL, **OPTIONS)
            app = psutil.Process(server.running.process.pid)
            memory = MemoryWatch({"app": app.pid, "engine": engine["pid"]}, MIN_REQUESTS if seconds >= JUDGED_S else 1)
            with _tabs(browser, server) as tabs:
                _live(server, tabs, memory, seconds)
                faults = [fault for tab, page in zip(tabs, PAGES, strict=True) for fault in _faults_of(tab, page)]
    return [*faults, *memory.faults()]


@contextmanager
def _tabs(browser: Browser, server: PizarraServer) -> Iterator[list[Tab]]:
    with ExitStack() as stack:
        tabs = [stack.enter_context(open_tab(browser, server.url.rstrip("/"))) for _ in PAGES]
        for tab, path in zip(tabs, PAGES, strict=True):
            tab.go(path)
        yield tabs


def _live(server: PizarraServer, tabs: list[Tab], memory: MemoryWatch, seconds: float) -> None:
    """A request now and then, and time for every tab to draw what comes of it."""
    start = time.monotonic()
    told = turn = 0
    while (passed := time.monotonic() - start) < seconds:
        memory.take(passed / seconds)
        body = {"model": MODEL, "prompt": f"turn {turn} " * (1 + turn % 9), "max_tokens": 8 + turn % 40}
        server.client.post("/v1/completions", json=body).raise_for_status()
        tabs[turn % len(tabs)].page.wait_for_timeout(1000 * TURN_S)  # playwright's loop runs in here alone
        turn += 1
        if passed / seconds >= (told + 1) / 10:
            told += 1
            print(f"{passed:.0f} s, {turn} requests", flush=True)
    memory.take(1.0)


def _faults_of(tab: Tab, path: str) -> list[str]:
    """What a tab did wrong."""
    last = tab.page.evaluate(f"async () => {AGE_JS}")
    age_s = time.time() - last / 1000 if last else float("inf")
    faults = [f"{path}: {problem}" for problem in tab.problems[:5]]
    return faults + ([f"{path}: its data is {age_s:.0f} s old"] if age_s > STALE_S else [])
