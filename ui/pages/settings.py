"""Appearance, alerts, what is kept and for how long, and what this installation is. Filled by assets/js/settings.js."""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane; its tabs are addresses (`?tab=alerts`), so that a reload stays where it was."""
    pane("settings")
