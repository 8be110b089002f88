"""What was asked of the engines: the list, live and past, and everything of one. Filled by assets/js/requests.js."""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane; pages of the list from /api/requests, what changes from the live topic `requests`."""
    pane("requests")
