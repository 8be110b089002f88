"""The registry of pages: name -> "module:function". The order is the order of the navigation.

Owns the list and the way from a name to its builder and its address; knows nothing of what a page shows.
Invariant: a page is one file here, one line below, one icon, and the texts "nav_<name>" in each language.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

PAGES: dict[str, str] = {
    "overview": "ui.pages.overview:build",
    "chat": "ui.pages.chat:build",
    "playground": "ui.pages.playground:build",
    "models": "ui.pages.models:build",
    "monitor": "ui.pages.monitor:build",
    "requests": "ui.pages.requests:build",
    "settings": "ui.pages.settings:build",
}


def page_path(name: str) -> str:
    """Where a page is served: the first one is the front page."""
    return "/" if name == next(iter(PAGES)) else f"/{name}"


def resolve_page(name: str) -> Callable[[], None]:
    """The function that fills a page with components. The error for an unknown name lists the known ones."""
    try:
        module, _, attribute = PAGES[name].partition(":")
    except KeyError:
        raise KeyError(f"no page {name!r}; known are {', '.join(PAGES)}") from None
    builder: Callable[[], None] = getattr(import_module(module), attribute)
    return builder
