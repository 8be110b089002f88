"""The whole product in a real browser, with the real engine and the default model."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser import Tab
from tests.e2e.conftest import Server, wait_for
from ui.pages import PAGES, page_path

Opener = Callable[..., AbstractContextManager[Tab]]

pytestmark = pytest.mark.timeout(300)

LOAD_MS = 120_000
ANSWER_MS = 90_000
LAST_ANSWER = "[...document.querySelectorAll('.pz-message-assistant .pz-message-text')].at(-1)"
QUESTION = 'Tell me a very long story about a chalkboard. <img src=x onerror="window.hacked = true"> **now**'


def _chip(page: Page, state: str) -> None:
    page.wait_for_selector(f".pz-head .pz-chip[data-state={state}]", timeout=LOAD_MS)


def _ask(page: Page, text: str) -> None:
    expect(page.locator(".pz-send")).to_be_enabled(timeout=ANSWER_MS)
    page.fill("#pz-message", text)
    page.keyboard.press("Enter")


def _answer(page: Page) -> str:
    return page.locator(".pz-message-assistant .pz-message-text").last.inner_text()


def _running(url: str) -> int:
    engines: list[dict[str, Any]] = httpx.get(f"{url}/api/engines").json()["engines"]
    return sum(engine["stats"]["num_requests_running"] for engine in engines if engine["stats"])


def test_from_nothing_to_a_chat_and_back(unloaded_url: str, open_page: Opener) -> None:
    """Open, load the default model, chat, reload while it answers, stop, answer again, unload, read the receipt."""
    with open_page(unloaded_url) as tab:
        page = tab.go("/")
        page.click(".pz-first .pz-primary")
        _chip(page, "ready")

        page.click("nav a[href='/chat']")
        page.click("button[aria-label='Chat settings']")
        page.fill("#pz-temperature", "0")  # at 0 this model says the same each time, and repeats itself without an end
        _ask(page, QUESTION)
        page.wait_for_function(f"{LAST_ANSWER}?.innerText.length > 20", timeout=ANSWER_MS)
        seen = _answer(page)
        page.reload()
        page.wait_for_selector(".pz-message-assistant[data-state=streaming]", timeout=ANSWER_MS)
        grown = f"{LAST_ANSWER}?.innerText.length > {len(seen)}"
        page.wait_for_function(grown, timeout=ANSWER_MS)

        page.keyboard.press("Escape")
        expect(page.locator(".pz-message-stats")).to_contain_text(
            re.compile(r"stopped at token \d+"), timeout=ANSWER_MS
        )
        wait_for("an idle engine after Stop", lambda: _running(unloaded_url) == 0, 60)
        expect(page.locator(".pz-message-user .pz-message-text")).to_have_text(QUESTION)
        assert not page.evaluate("window.hacked === true")
        first = _answer(page)

        page.click(".pz-message-assistant button[aria-label='Answer again']")
        page.wait_for_selector(".pz-message-assistant[data-state=streaming]")
        page.click(".pz-send.pz-stop")
        expect(page.locator(".pz-versions")).to_contain_text("2/2", timeout=ANSWER_MS)
        page.click("button[aria-label='Previous version']")
        expect(page.locator(".pz-versions")).to_contain_text("1/2")
        assert _answer(page) == first

        page.click(".pz-head-unload button")
        receipt = re.compile(r"freed [\d.]+ .iB of [\d.]+ .iB in [\d.]+ s")
        expect(page.locator(".pz-toast-ok")).to_contain_text(receipt, timeout=LOAD_MS)
        _chip(page, "no_model")
        expect(page.locator(".pz-notice")).to_contain_text("you can read, not write")
        page.click("nav a[href='/models']")
        expect(page.locator("[data-model=smollm2-135m-instruct] .pz-receipt")).to_contain_text(receipt)
        assert tab.problems == []


def test_an_edit_makes_a_branch_and_settings_stay(loaded_url: str, open_page: Opener) -> None:
    with open_page(loaded_url) as tab:
        page = tab.go("/chat")
        page.click("button[aria-label='Chat settings']")
        page.fill("#pz-max_tokens", "8")
        page.fill("#pz-temperature", "0")
        _ask(page, "Say one thing.")
        finished = ".pz-message-assistant[data-state=complete]"
        page.wait_for_selector(finished, timeout=ANSWER_MS)
        expect(page.locator(".pz-message-stats")).to_contain_text("8 out")

        page.click(".pz-message-user button[aria-label='Edit']")
        page.fill(".pz-message-user textarea", "Say another thing.")
        page.click(".pz-message-user .pz-primary")
        expect(page.locator(".pz-message-user .pz-versions")).to_contain_text("2/2", timeout=ANSWER_MS)
        page.wait_for_selector(finished, timeout=ANSWER_MS)
        page.click(".pz-message-user button[aria-label='Previous version']")
        expect(page.locator(".pz-message-user .pz-message-text")).to_have_text("Say one thing.")

        page.reload()
        expect(page.locator(".pz-message-user .pz-message-text")).to_have_text("Say one thing.")
        assert page.input_value("#pz-max_tokens") == "8"
        assert tab.problems == []


def test_a_stale_tab_gets_the_newest_state_and_overwrites_nothing(loaded_url: str, open_page: Opener) -> None:
    created = httpx.post(f"{loaded_url}/api/conversations", json={"title": "mine"}).json()
    with open_page(loaded_url) as tab:
        page = tab.go(f"/chat?c={created['id']}")
        expect(page.locator(".pz-chat-heading")).to_have_text("mine")
        page.route(
            "**/api/conversations/*/generate", lambda route: route.continue_(post_data='{"version": 0, "content": "x"}')
        )
        _ask(page, "This tab is stale.")
        expect(page.locator(".pz-toast").first).to_be_visible(timeout=ANSWER_MS)
        expect(page.locator("#pz-message")).to_have_value("This tab is stale.")
        kept = httpx.get(f"{loaded_url}/api/conversations/{created['id']}").json()
        assert kept["messages"] == []


def test_a_restart_loses_nothing_and_the_page_comes_back(loaded_url: str, server: Server, open_page: Opener) -> None:
    with open_page(loaded_url) as tab:
        page = tab.go("/chat")
        page.click("button[aria-label='Chat settings']")
        page.fill("#pz-max_tokens", "6")
        _ask(page, "Remember me.")
        page.wait_for_selector(".pz-message-assistant[data-state=complete]", timeout=ANSWER_MS)
        answer = _answer(page)
        server.stop()
        expect(page.locator(".pz-head")).to_have_class(re.compile("pz-stale"), timeout=LOAD_MS)
        expect(page.locator(".pz-age")).to_contain_text(re.compile(r"stale \d+ s"))
        server.start()
        expect(page.locator(".pz-head")).not_to_have_class(re.compile("pz-stale"), timeout=LOAD_MS)
        _chip(page, "no_model")
        assert _answer(page) == answer
        page.reload()
        expect(page.locator(".pz-message-user .pz-message-text")).to_have_text("Remember me.")
        assert _answer(page) == answer
        assert [problem for problem in tab.problems if "api/live" not in problem] == []


def test_the_playground_goes_on_from_a_text_and_stops(loaded_url: str, open_page: Opener) -> None:
    with open_page(loaded_url) as tab:
        page = tab.go("/playground")
        page.fill("#pz-play-prompt", "Once upon a time")
        page.fill("[name=max_tokens]", "5")
        page.click(".pz-play-go")
        expect(page.locator(".pz-play-status")).to_contain_text("5 out", timeout=ANSWER_MS)
        assert page.locator(".pz-play-sheet").inner_text().startswith("Once upon a time")
        page.locator(".pz-play-sheet [data-index='2']").click()
        expect(page.locator(".pz-play-top tbody tr")).to_have_count(10, timeout=ANSWER_MS)

        page.fill("#pz-play-prompt", "one two " * 12)  # the likeliest text goes on like that, and does not end
        page.fill("[name=temperature]", "0")
        page.fill("[name=max_tokens]", "2000")
        page.click(".pz-play-go")
        wait_for("a running completion", lambda: _running(loaded_url) == 1, 60)
        page.click(".pz-play-stop")
        wait_for("an idle engine after Stop", lambda: _running(loaded_url) == 0, 60)
        expect(page.locator(".pz-play-status")).to_contain_text("stopped")
        assert tab.problems == []


def test_zoom_survives_live_updates(server_url: str, open_page: Opener) -> None:
    shown = "document.querySelector('.pz-plots .pz-card:nth-child(3) .js-plotly-plot')"
    with open_page(server_url) as tab:
        page = tab.go("/monitor")
        page.wait_for_function(f"{shown}?.data?.some((trace) => trace.y.length > 3)", timeout=LOAD_MS)
        box = page.locator(".pz-plots .pz-card").nth(2).locator(".nsewdrag").bounding_box()
        assert box is not None
        span = f"(([from, to]) => new Date(to) - new Date(from))({shown}._fullLayout.xaxis.range)"
        whole = page.evaluate(span)
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 41, steps=5)
        page.mouse.up()
        page.wait_for_function(f"(before) => {span} < 0.6 * before", arg=whole, timeout=LOAD_MS)
        zoomed = page.evaluate(f"{shown}._fullLayout.xaxis.range")
        newest = f"Math.max(...{shown}.data.flatMap((trace) => trace.x).map((x) => x.valueOf()))"
        before = page.evaluate(newest)
        page.wait_for_function(f"(before) => {newest} > before + 1500", arg=before, timeout=LOAD_MS)
        assert page.evaluate(f"{shown}._fullLayout.xaxis.range") == zoomed
        page.click("[data-range='1h']")
        page.wait_for_function(f"(before) => {shown}._fullLayout.xaxis.range[0] !== before", arg=zoomed[0])
        assert "range=1h" in page.url
        assert tab.problems == []


def test_the_monitor_shows_what_the_api_says(server_url: str, open_page: Opener) -> None:
    with open_page(server_url) as tab:
        page = tab.go("/monitor")
        page.wait_for_selector(".pz-plots .pz-card:nth-child(3) .main-svg")
        page.click(".pz-pause")
        shown = page.evaluate(
            "(() => { const plot = document.querySelector('.pz-plots .pz-card:nth-child(3) .js-plotly-plot');"
            " const line = plot.data.find((trace) => trace.name === 'total');"
            " const last = line.y.findLastIndex((value) => value !== null);"
            " return [line.x[last].valueOf() / 1000, line.y[last]]; })()"
        )
        said = httpx.get(f"{server_url}/api/samples", params={"since": shown[0] - 5, "until": shown[0] + 5}).json()
        total = said["columns"]["host_memory_total_bytes"][said["t"].index(shown[0])]
        assert shown[1] == pytest.approx(total / 2**30)


# Whatever one scrolls past must go under the header and the rail.
LIES_OVER_THE_FRAME = """() => [0, 200, 400, 600].flatMap((top) => {
  scrollTo(0, top);
  return [...document.querySelectorAll(".pz-head, .pz-rail")].flatMap((frame) => {
    const box = frame.getBoundingClientRect();
    const found = [];
    for (let x = box.left + 4; x < box.right; x += 12)
      for (let y = box.top + 4; y < box.bottom; y += 8) {
        const node = document.elementFromPoint(x, y);
        if (!frame.contains(node)) found.push(`${node?.tagName} ${node?.textContent.slice(0, 20)}`);
      }
    return found;
  });
})"""


def test_every_page_fits_a_phone_and_says_nothing_wrong(server_url: str, open_page: Opener) -> None:
    """In the light; tests/ui/test_looks.py has both themes."""
    with open_page(server_url, size=(390, 844), theme="light") as tab:
        for name in PAGES:
            page = tab.go(page_path(name))
            page.wait_for_selector(f"nav a[href='{page_path(name)}'][aria-current=page]")
            page.wait_for_timeout(500)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert page.evaluate(LIES_OVER_THE_FRAME) == [], name
            assert page.evaluate("document.documentElement.dataset.theme") == "light"
        assert tab.problems == []


def test_spanish_by_the_browsers_language(server_url: str, open_page: Opener) -> None:
    with open_page(server_url, locale="es-ES") as tab:
        page = tab.go("/playground")
        expect(page.locator(".pz-rail")).to_contain_text("Modelos")
        expect(page.locator(".pz-play-go")).to_have_text("Completar")
        assert tab.problems == []


def test_a_refused_load_says_why(unloaded_url: str, open_page: Opener) -> None:
    with open_page(unloaded_url) as tab:
        page = tab.go("/models")
        page.click("[data-model=smollm2-135m-instruct] .pz-primary")
        expect(page.locator(".pz-estimate .pz-fit")).to_contain_text("Fits")
        expect(page.locator(".pz-estimate")).to_contain_text("In use already: this app")
        kv_format = page.locator("dialog select").nth(1)
        kv_format.select_option("int8")
        expect(page.locator("dialog")).to_contain_text("almost twice the tokens")
        expect(page.locator(".pz-estimate .pz-fit")).to_contain_text("Fits")
        kv_format.select_option("fp8")
        expect(page.locator(".pz-estimate .pz-problem")).to_contain_text("compute capability 8.9")
        kv_format.select_option("auto")
        expect(page.locator(".pz-estimate .pz-fit")).to_contain_text("Fits")
        page.locator("dialog").get_by_text("More options").click()
        page.locator("dialog").get_by_label("KV cache (MiB)").fill("16000000")
        expect(page.locator(".pz-estimate strong")).to_contain_text("Does not fit by")
        expect(page.locator(".pz-estimate .pz-problem")).to_contain_text("GiB")
        expect(page.locator("dialog .pz-dialog-foot .pz-primary")).to_be_disabled()


def test_an_engine_that_dies_is_shown_with_its_cause(loaded_url: str, open_page: Opener) -> None:
    pid = httpx.get(f"{loaded_url}/api/engines").json()["engines"][0]["pid"]
    with open_page(loaded_url) as tab:
        page = tab.go("/models")
        _chip(page, "ready")
        os.kill(pid, signal.SIGKILL)
        _chip(page, "failed")
        card = page.locator("[data-model=smollm2-135m-instruct]")
        expect(card.locator(".pz-problem")).to_be_visible(timeout=LOAD_MS)
        expect(card.locator(".pz-primary")).to_contain_text("Load")
        assert tab.problems == []
