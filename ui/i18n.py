"""Texts of the dashboard in each language: one JSON file a language under assets/i18n.

Owns reading those files and handing them to Gradio's labels; our own panes fetch the very same files.
Knows nothing of pages. Invariant: every language has the same keys (a test compares them).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import gradio as gr
from gradio.i18n import I18nData

TEXTS = Path(__file__).resolve().parent.parent / "assets" / "i18n"


def languages() -> tuple[str, ...]:
    """The languages there are texts for, by their two-letter code."""
    return tuple(sorted(path.stem for path in TEXTS.glob("*.json")))


@cache
def texts(language: str) -> dict[str, str]:
    """All texts of one language."""
    loaded: dict[str, str] = json.loads((TEXTS / f"{language}.json").read_text(encoding="utf-8"))
    return loaded


@cache
def gradio_texts() -> gr.I18n:
    """The texts as Gradio wants them; the browser's language chooses."""
    return gr.I18n(**{language: texts(language) for language in languages()})


def text(key: str) -> I18nData:
    """A label that Gradio translates in the browser. An unknown key fails here, not on the screen."""
    if key not in texts("en"):
        raise KeyError(f"no text {key!r} in assets/i18n/en.json: add it there and in every other language")
    return gradio_texts()(key)
