"""The whole product on one port: the app's API with the dashboard mounted at "/".

Owns the wiring of pages and assets onto the app. Knows nothing of engines or data.
Invariant: the app's own routes win; Gradio only gets what they leave.
"""

from __future__ import annotations

import os
import warnings

# Read by Gradio while it is imported: nothing is reported to anyone.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
from fastapi import FastAPI

from ui.i18n import gradio_texts
from ui.pages import PAGES, page_path, resolve_page
from ui.shell import frame
from ui.static import ASSETS, serve_assets
from ui.theme import gradio_theme, page_head


def build_pages() -> gr.Blocks:
    """All pages of PAGES. The first is the front page; each of the others is a route of its own."""
    first, *others = PAGES
    pages: gr.Blocks
    with gr.Blocks(title="Pizarra", analytics_enabled=False) as pages:
        frame(first)
        resolve_page(first)()
    for name in others:
        with pages.route(name.capitalize(), page_path(name), show_in_navbar=False):
            frame(name)
            resolve_page(name)()
    return pages


def mount_site(app: FastAPI) -> FastAPI:
    """Put assets and pages onto an app that already has its API routes."""
    serve_assets(app)
    with warnings.catch_warnings():
        # Gradio warns that server-side rendering is off for several pages, though we ask for it to be off.
        warnings.filterwarnings("ignore", message="SSR mode is not supported")
        site: FastAPI = gr.mount_gradio_app(
            app,
            build_pages(),
            path="/",
            i18n=gradio_texts(),
            theme=gradio_theme(),
            head=page_head(),
            favicon_path=str(ASSETS / "icons" / "favicon.svg"),
            footer_links=[],
            show_error=False,
            ssr_mode=False,
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            max_file_size="1mb",
        )
    return site


def create_site() -> FastAPI:
    """What uvicorn is given: the app with its dashboard."""
    from app.server import create_app

    return mount_site(create_app())
