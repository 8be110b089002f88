"""The front page: is it up, is it full, is it fast, what broke. Filled by assets/js/overview.js."""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane; its data comes over the live socket and /api."""
    pane("overview")
