"""Raw completion: a prompt as it is, sampling, the answer and what it cost.

The form is Gradio's; the sheet with the answer is our own pane (assets/js/playground.js), fed by the handler's value.
Invariant: Stop closes the handler's connection, which aborts the request in the engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
import httpx

from ui.completion import Completion, CompletionFields, first_model, stream_completion
from ui.i18n import text
from ui.shell import pane

PAINT_INTERVAL_S = 0.08  # Gradio compares the whole value at each paint: twelve a second look fluent and cost little


def _client(request: gr.Request) -> httpx.AsyncClient:
    """A client of this very server, at the address the browser's request arrived on and under the same host name."""
    assert request.request is not None, "Gradio leaves it out only for calls that no browser made"
    host, port = request.request.scope["server"]
    headers = {"Host": request.headers["host"]}
    if key := os.environ.get("PIZARRA_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    return httpx.AsyncClient(base_url=f"http://{f'[{host}]' if ':' in host else host}:{port}", headers=headers)


def _shown(prompt: str, completion: Completion, state: str, started: float, model: str | None = None) -> dict[str, Any]:
    """The pane's value: texts and numbers only, never markup."""
    return {
        "prompt": prompt,
        "text": completion.text,
        "model": model,
        "state": state,
        "finish_reason": completion.finish_reason,
        "usage": completion.usage,
        "seed": completion.seed,
        "error": completion.error,
        "elapsed_s": time.monotonic() - started,
    }


async def complete(
    prompt: str,
    max_tokens: float,
    temperature: float,
    top_p: float,
    top_k: float,
    min_p: float,
    seed: str,
    stop: str,
    chosen: str | None,
    request: gr.Request,
) -> AsyncIterator[dict[str, Any]]:
    """Stream one completion of the chosen model, else of the first that is loaded, into the pane."""
    started = painted = time.monotonic()
    completion = Completion()
    if seed.strip() and not seed.strip().isdecimal():
        yield _shown(prompt, completion, "bad_seed", started)
        return
    fields = CompletionFields(
        prompt=prompt,
        max_tokens=int(max_tokens),
        temperature=temperature,
        top_p=top_p,
        top_k=int(top_k),
        min_p=min_p,
        seed=int(seed) if seed.strip() else None,
        stop=tuple(line for line in stop.splitlines() if line),
    )
    model = None
    try:
        async with _client(request) as client:
            model = chosen or await first_model(client)
            if model is None:
                yield _shown(prompt, completion, "no_model", started)
                return
            yield _shown(prompt, completion, "running", started, model)
            async for completion in stream_completion(client, model, fields):
                if time.monotonic() - painted >= PAINT_INTERVAL_S:
                    painted = time.monotonic()
                    yield _shown(prompt, completion, "running", started, model)
    except httpx.HTTPStatusError as error:
        completion.error = f"{error.request.url.path}: {error.response.status_code} {error.response.reason_phrase}"
    except httpx.HTTPError as error:
        completion.error = f"{type(error).__name__}: {error}"
    yield _shown(prompt, completion, "failed" if completion.error else "done", started, model)


def _sampling() -> list[gr.components.Component]:
    """The sampling fields, in the order of `complete`."""
    with gr.Row(elem_classes="pz-fields"):
        max_tokens = gr.Slider(1, 2048, value=128, step=1, label=text("max_tokens"), buttons=[])
        temperature = gr.Slider(0, 2, value=0.7, step=0.05, label=text("temperature"), buttons=[])
    with gr.Row(elem_classes="pz-fields"):
        top_p = gr.Slider(0.01, 1, value=0.95, step=0.01, label=text("top_p"), buttons=[])
        top_k = gr.Slider(0, 200, value=0, step=1, label=text("top_k"), info=text("top_k_hint"), buttons=[])
    with gr.Row(elem_classes="pz-fields"):
        min_p = gr.Slider(0, 1, value=0, step=0.01, label=text("min_p"), buttons=[])
        seed = gr.Textbox(value="", max_lines=1, label=text("seed"), info=text("seed_hint"))
    stop = gr.Textbox(value="", lines=2, label=text("stop_strings"), info=text("stop_strings_hint"))
    return [max_tokens, temperature, top_p, top_k, min_p, seed, stop]


def build() -> None:
    """The form on the left, the sheet on the right; one below the other on a narrow screen."""
    pane("heading")
    with gr.Row(elem_classes="pz-playground-page", equal_height=False):
        with gr.Column(scale=5, elem_classes="pz-card pz-form-card"):
            model = pane("playground_model")
            prompt = gr.Textbox(
                label=text("prompt"), placeholder=text("prompt_placeholder"), lines=6, max_lines=16, elem_id="pz-prompt"
            )
            sampling = _sampling()
            with gr.Row(elem_classes="pz-actions"):
                stop = gr.Button(text("stop"), elem_id="pz-stop")
                run = gr.Button(text("complete"), variant="primary", elem_id="pz-complete")
        with gr.Column(scale=7, elem_classes="pz-card pz-sheet-card"):
            sheet = pane("playground")
    running = run.click(
        complete,
        [prompt, *sampling, model],
        sheet,
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )
    stop.click(None, cancels=[running], api_visibility="private")
