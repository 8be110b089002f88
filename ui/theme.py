"""Gradio's theme and the head of every page, both built on the colours of assets/css/tokens.css.

Owns the mapping from Gradio's variables to ours. Invariant: no colour is written here; a page has one palette.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gradio as gr

from ui.i18n import languages
from ui.pages import PAGES, page_path
from ui.static import ASSETS

_IMPORT = re.compile(r"""^(?:import|export) [^;(]*?from "\./(\w+)\.js";""", re.MULTILINE)

# Set before the first paint, or a dark page flashes white.
EARLY_THEME = (
    "(() => { const k = localStorage.getItem('pizarra.theme') || 'system';"
    " const dark = k === 'dark' || (k === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);"
    " document.documentElement.dataset.theme = dark ? 'dark' : 'light'; })();"
)

# A language chosen on the settings page. Gradio's labels follow the browser's, so there the browser is made to say it.
EARLY_LANGUAGE = (
    "(() => { const l = localStorage.getItem('pizarra.language');"
    f" if (!{list(languages())}.includes(l)) return;"
    " document.documentElement.lang = l;"
    " Object.defineProperty(navigator, 'language', { get: () => l });"
    " Object.defineProperty(navigator, 'languages', { get: () => [l] }); })();"
)

# One list a page, chosen in the browser: Gradio has one head for all pages.
EARLY_MODULES = (
    "for (const name of (%s)[location.pathname] ?? []) document.head.append(Object.assign("
    "document.createElement('link'), { rel: 'modulepreload', href: `/assets/js/${name}.js` }));"
)


def _stylesheets() -> list[Path]:
    """The shared ones first, so that a page's own rules win over them."""
    shared = ("tokens", "gradio", "components", "frame")
    paths = (ASSETS / "css").glob("*.css")
    return sorted(paths, key=lambda path: (shared.index(path.stem) if path.stem in shared else len(shared), path.stem))


def page_head() -> str:
    """Styles, the early theme, and a head start for the scripts that the page at hand needs."""
    styles = "".join(f'<link rel="stylesheet" href="/assets/css/{path.name}">' for path in _stylesheets())
    modules = json.dumps({page_path(name): modules_of(name) for name in PAGES})
    return (
        f'<script>{EARLY_THEME}{EARLY_LANGUAGE}</script><meta name="color-scheme" content="dark light">'
        f'<link rel="icon" type="image/svg+xml" href="/assets/icons/favicon.svg">{styles}'
        f"<script>{EARLY_MODULES % modules}</script>"
    )


def modules_of(page: str) -> list[str]:
    """The scripts of the frame and of a page's own pane, and all that these import before they run."""
    found: list[str] = []
    waiting = ["frame", page]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.append(name)
            waiting += _IMPORT.findall((ASSETS / "js" / f"{name}.js").read_text(encoding="utf-8"))
    return sorted(found)


def gradio_theme() -> gr.themes.Base:
    """Gradio's components in our colours: the same variables serve its light and its dark mode."""
    both = {
        "body_background_fill": "var(--pz-bg)",
        "body_text_color": "var(--pz-text)",
        "body_text_color_subdued": "var(--pz-muted)",
        "background_fill_primary": "var(--pz-panel)",
        "background_fill_secondary": "var(--pz-bg)",
        "border_color_primary": "var(--pz-line)",
        "border_color_accent": "var(--pz-accent)",
        "color_accent_soft": "var(--pz-hover)",
        "block_background_fill": "transparent",
        "block_border_color": "var(--pz-line)",
        "block_label_text_color": "var(--pz-muted)",
        "block_title_text_color": "var(--pz-text)",
        "block_info_text_color": "var(--pz-muted)",
        "input_background_fill": "var(--pz-field)",
        "input_border_color": "var(--pz-line)",
        "input_border_color_focus": "var(--pz-accent)",
        "input_placeholder_color": "var(--pz-muted)",
        "button_primary_background_fill": "var(--pz-accent)",
        "button_primary_background_fill_hover": "var(--pz-accent-strong)",
        "button_primary_border_color": "transparent",
        "button_primary_border_color_hover": "transparent",
        "button_primary_text_color": "var(--pz-on-accent)",
        "button_primary_text_color_hover": "var(--pz-on-accent)",
        "button_secondary_background_fill": "var(--pz-panel)",
        "button_secondary_background_fill_hover": "var(--pz-hover)",
        "button_secondary_border_color": "var(--pz-line)",
        "button_secondary_text_color": "var(--pz-text)",
        "slider_color": "var(--pz-accent)",
    }
    plain = {
        "block_border_width": "0px",
        "block_padding": "0",
        "block_radius": "10px",
        "input_radius": "10px",
        "input_border_width": "1px",
        "button_large_radius": "10px",
        "button_small_radius": "8px",
        "layout_gap": "14px",
        "form_gap_width": "14px",
    }
    theme = gr.themes.Base(
        font=["ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "DejaVu Sans Mono", "monospace"],
    )
    return theme.set(**both, **{f"{name}_dark": value for name, value in both.items()}, **plain)
