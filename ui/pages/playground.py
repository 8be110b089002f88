"""The bare model: completion, raw chat, tokens, templates, structured output. Filled by assets/js/playground.js.

Not Gradio's form: an answer goes on while one looks at another tab, and Stop ends it in the engine.
"""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane with a tab for each kind of trial; each talks to /v1 and /api itself."""
    pane("playground")
