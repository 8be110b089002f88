"""Models on disk and in the catalogue, with pull, load, unload and their jobs. Filled by assets/js/models.js."""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane; progress comes over the live topic `jobs`, so that a reload or a second tab sees it too."""
    pane("models")
