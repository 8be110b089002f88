"""The dashboard over a real server whose engines say what they are told: thoughts, two models, a pull that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.app.harness import Client, give_templates, make_home, make_settings, serving
from tests.app.test_conversation_thoughts import SAID, TEMPLATES
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000
MODELS = ("forgetful", "mindful")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = give_templates(make_home(tmp_path_factory.mktemp("site"), *MODELS), {m: TEMPLATES[m] for m in MODELS})
    with serving(make_settings(home), mount_site) as client:
        for model in MODELS:
            assert client.load(model)["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(chromium_path: Path, client: Client) -> Iterator[Tab]:
    with open_tab(chromium_path, str(client.base_url).rstrip("/")) as opened:
        yield opened


def ask(page: Page, text: str) -> None:
    expect(page.locator(".pz-send")).to_be_enabled(timeout=WAIT_MS)
    page.fill("#pz-message", text)
    page.keyboard.press("Enter")


def test_thoughts_go_on_after_a_reload_until_they_are_stopped(tab: Tab) -> None:
    page = tab.go("/chat")
    ask(page, "SLOW ENDLESS SAY«<think>Well, let me see. »")
    page.wait_for_selector(".pz-thoughts-live[open]", timeout=WAIT_MS)
    page.reload()
    page.wait_for_selector(".pz-thoughts-live[open]", timeout=WAIT_MS)
    text = "document.querySelector('.pz-thoughts-text').textContent"
    seen = len(page.evaluate(text))
    page.wait_for_function(f"{text}.length > {seen + 20}", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    expect(page.locator(".pz-message-stats")).to_contain_text("ended within its thoughts", timeout=WAIT_MS)
    assert page.locator(".pz-thoughts[open]").count() == 1
    assert tab.problems == []


def test_thoughts_fold_when_the_answer_has_come(tab: Tab) -> None:
    page = tab.go("/chat")
    ask(page, SAID)
    expect(page.locator(".pz-message-assistant .pz-message-text")).to_have_text("Yes: it is.", timeout=WAIT_MS)
    expect(page.locator(".pz-thoughts summary")).to_have_text(re.compile(r"Thought for [\d.]+ m?s"), timeout=WAIT_MS)
    expect(page.locator(".pz-thoughts-text")).to_be_hidden()
    page.click(".pz-thoughts summary")
    expect(page.locator(".pz-thoughts-text")).to_have_text(re.compile("3 < 4"))
    assert tab.problems == []


def test_a_wrong_source_is_told_in_the_dialog_and_a_right_one_closes_it(tab: Tab, tmp_path: Path) -> None:
    page = tab.go("/models")
    page.click(".pz-page-head .pz-button")
    source = page.locator("dialog .pz-field").first
    source.fill("/nowhere/model.gguf")
    page.keyboard.press("Enter")
    problem = "/nowhere/model.gguf: there is no such file or folder"
    expect(page.locator("dialog .pz-problem")).to_have_text(problem, timeout=WAIT_MS)
    expect(source).to_have_value("/nowhere/model.gguf")
    assert page.locator(".pz-toast").count() == 0, "it is said once"
    source.fill(str(make_home(tmp_path, "another") / "models" / "another"))
    page.click("dialog .pz-primary")
    expect(page.locator("dialog")).to_have_count(0, timeout=WAIT_MS)
    expect(page.locator("[data-model=another]")).to_be_visible(timeout=WAIT_MS)
    assert tab.problems == []


def test_models_are_filtered_by_words(tab: Tab) -> None:
    page = tab.go("/models")
    page.wait_for_selector("[data-model=mindful]")
    page.fill(".pz-model-filter", "Qwen3 0.6B")
    expect(page.locator("[data-model=mindful]")).to_have_count(0)
    expect(page.locator("[data-model='qwen3-0.6b']")).to_be_visible()
    expect(page.get_by_text("No model fits this filter.")).to_have_count(1)
    page.fill(".pz-model-filter", "")
    expect(page.locator("[data-model=mindful]")).to_be_visible()
    assert tab.problems == []


def test_the_playground_asks_the_model_that_was_chosen(tab: Tab) -> None:
    page = tab.go("/playground")
    select = page.locator(".pz-playground_model select")
    expect(select.locator("option")).to_have_text(list(MODELS), timeout=WAIT_MS)
    for model in reversed(MODELS):
        select.select_option(model)
        page.fill("#pz-prompt textarea", f"Write as {model}.")
        page.click("#pz-complete")
        expect(page.locator(".pz-sheet-status")).to_contain_text(f"{model}", timeout=WAIT_MS)
    assert tab.problems == []
