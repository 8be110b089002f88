"""A headless Chromium for tests, and the list of what a page must never do.

Owns the launch and the watch over console and network. Knows nothing of the product's pages.
Invariants: a page's console errors, uncaught exceptions and requests to other hosts all end up in `problems`; a tab has
a context of its own, so that no cookie, storage, cached file or page is left over for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOCAL_SCHEMES = {"data", "blob"}


@dataclass
class Tab:
    """One page and what went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        """Open a path of the server and wait until our panes stand."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector(".pz-chip:not([data-state=unknown])")
        return self.page

    def watch(self) -> None:
        self.page.on("console", self._take_message)
        self.page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self._check_host(request.url))

    def _take_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def _check_host(self, url: str) -> None:
        target = urlsplit(url)
        if target.scheme not in LOCAL_SCHEMES and target.netloc != urlsplit(self.url).netloc:
            self.problems.append(f"request to another host: {url}")


@contextmanager
def open_browser(chromium: Path) -> Iterator[Browser]:
    """A browser without pages. Until it is closed, this thread cannot run coroutines of its own (playwright's loop)."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_tab(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = (1440, 900),
    theme: str = "dark",
    locale: str = "en-GB",
) -> Iterator[Tab]:
    """A fresh profile with one page."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        locale=locale,
    )
    tab = Tab(context.new_page(), url)
    tab.watch()
    try:
        yield tab
    finally:
        context.close()
