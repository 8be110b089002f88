"""The mount points of our own panes inside Gradio's pages.

Owns the one way a pane gets onto a page: a `gr.HTML` that imports an ES module of assets/js and hands it its element.
Knows nothing of what a pane shows. Invariant: templates hold only names from this file's callers in ui/, never
anything a user or a model wrote (Gradio evaluates templates as JavaScript).
"""

from __future__ import annotations

import re

import gradio as gr

from ui.pages import PAGES, page_path

_NAME = re.compile(r"[a-z_/]+")


def pane(module: str) -> gr.HTML:
    """A pane that `assets/js/<module>.js` fills by its exported `mount(element, pane)`."""
    if not _NAME.fullmatch(module):
        raise ValueError(f"pane module {module!r}: lower-case letters, underscores and slashes only")
    name = module.rsplit("/", 1)[-1]
    return gr.HTML(
        html_template=f'<div class="pz pz-pane pz-{name}" data-pane="{name}"></div>',
        js_on_load=(
            f"import('/assets/js/{module}.js').then((m) => "
            "m.mount(element.querySelector('[data-pane]'), {props, watch}));"
        ),
        apply_default_css=False,
        elem_classes=["pz-host", f"pz-host-{name}"],
        container=False,
    )


def frame(page: str) -> gr.HTML:
    """Header and navigation: the same on every page."""
    routes = " ".join(f"{name}={page_path(name)}" for name in PAGES)
    return gr.HTML(
        html_template=f'<div class="pz" data-frame="{page}" data-routes="{routes}"></div>',
        js_on_load="import('/assets/js/frame.js').then((m) => m.mount(element.querySelector('[data-frame]')));",
        apply_default_css=False,
        elem_classes=["pz-host", "pz-host-frame"],
        container=False,
    )
