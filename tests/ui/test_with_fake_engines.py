"""The dashboard over a real server whose engines say what they are told: thoughts, two models, a pull that fails."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

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
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
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


@dataclass
class Chat:
    """A conversation whose answer goes on until it is stopped, and what the server says of it, held back on the way."""

    client: Client
    page: Page
    id: str
    held: list[tuple[Route, APIResponse]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"/api/conversations/{self.id}"

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(self.path).json()
        return found

    def hold_back(self) -> None:
        """From now on the server answers the page at once, but the page has to wait for `let_go` to hear it."""
        self.page.route(f"**{self.path}", lambda route: self.held.append((route, route.fetch())))

    def until_held(self) -> None:
        until(self.page, lambda: self.held)

    def let_go(self) -> None:
        for route, response in self.held:
            route.fulfill(response=response)
        self.page.unroute(f"**{self.path}")

    def stop(self) -> None:
        self.client.post(f"{self.path}/stop")
        self.client.until(lambda: not self.state()["generating"])


def until(page: Page, check: Callable[[], Any]) -> None:
    """Let the page go on until that is true."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        page.wait_for_timeout(10)


@pytest.fixture
def chat(tab: Tab, client: Client) -> Chat:
    """The chat page stands, empty; the conversation's answer is being written."""
    tab.go("/chat")
    created = client.post("/api/conversations", json={}).json()
    asked = {"version": created["version"], "content": "SLOW ENDLESS", "model_id": "forgetful"}
    assert client.post(f"/api/conversations/{created['id']}/generate", json=asked).status_code == 202
    return Chat(client, tab.page, created["id"])


def shows_the_end(chat: Chat) -> None:
    """What the page shows is what the server has."""
    page = chat.page
    expect(page.locator(".pz-message-stats")).to_contain_text(re.compile(r"stopped at token \d+"), timeout=WAIT_MS)
    expect(page.locator(".pz-send:not(.pz-stop)")).to_have_count(1)
    answer = chat.state()["messages"][-1]
    assert answer["state"] == "interrupted"
    assert page.locator(".pz-message-assistant .pz-message-text").inner_text() == answer["content"].strip()


def test_an_answer_that_ends_before_the_page_has_read_it_is_seen_to_end(chat: Chat) -> None:
    """What was read while it was written is old by the time it arrives: the end came in between."""
    chat.hold_back()
    chat.page.evaluate(
        "(id) => { history.pushState(null, '', `?c=${id}`); dispatchEvent(new Event('popstate')); }",
        chat.id,
    )
    chat.until_held()
    chat.stop()
    chat.let_go()
    shows_the_end(chat)


def test_an_old_state_that_arrives_after_the_end_does_not_undo_it(tab: Tab, chat: Chat) -> None:
    """The page asks for something while the answer is written, and hears of the end before it hears what it asked."""
    page = tab.go(f"/chat?c={chat.id}")
    text = "document.querySelector('.pz-message-assistant .pz-message-text')?.innerText.length ?? 0"
    page.wait_for_function(f"{text} > 2", timeout=WAIT_MS)
    chat.hold_back()
    page.click("button[aria-label='Chat settings']")
    page.fill("#pz-temperature", "0.5")
    chat.until_held()
    page.keyboard.press("Escape")
    shows_the_end(chat)
    chat.let_go()
    expect(page.locator(".pz-saved")).to_have_text("saved", timeout=WAIT_MS)  # so the page has read the old state
    shows_the_end(chat)
    assert tab.problems == []


def test_text_goes_on_from_where_an_old_state_ends(tab: Tab, chat: Chat) -> None:
    """The page hears again what came after, once each, although it had heard it before."""
    page = tab.go(f"/chat?c={chat.id}")
    shown = "document.querySelector('.pz-message-assistant .pz-message-text')?.innerText ?? ''"
    page.wait_for_function(f"({shown}).length > 2", timeout=WAIT_MS)
    chat.hold_back()
    renamed = {"version": chat.state()["version"], "title": "of another tab"}
    assert chat.client.patch(chat.path, json=renamed).status_code == 200
    chat.until_held()
    held = len(page.evaluate(shown))
    page.wait_for_function(f"({shown}).length > {held + 20}", timeout=WAIT_MS)
    chat.let_go()
    expect(page.locator(".pz-chat-heading")).to_have_text("of another tab", timeout=WAIT_MS)
    page.wait_for_function(f"({shown}).length > {held + 40}", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    shows_the_end(chat)
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
