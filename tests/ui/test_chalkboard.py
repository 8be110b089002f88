"""The chalkboard in a browser: what it shows equals the trace of the API, and its text equals the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.fake_text import TEXT
from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from tests.ui.mounting import mount
from ui.site import mount_site

WAIT_MS = 60_000
FATES = ("accepted", "rejected", "not_judged")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("board"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def draw(page: Page, prompt: str) -> None:
    """A raw prompt, started."""
    start = page.locator("#probe .pz-primary")
    expect(start).to_be_enabled(timeout=WAIT_MS)
    page.locator("#probe .pz-segment").nth(1).click()
    page.fill("#probe .pz-board-prompt", prompt)
    page.locator("#probe").get_by_label("Max tokens").fill("200")
    start.click()


def trace_of(client: Client, page: Page) -> dict[str, Any]:
    request_id = page.evaluate("new URLSearchParams(location.search).get('request')")
    found: dict[str, Any] = client.get(f"/api/requests/{request_id}/trace").json()
    return found


def text_of(page: Page) -> str:
    text: str = page.locator(".pz-chalk-text").evaluate("(node) => node.textContent")
    return text


def test_the_board_shows_the_trace_and_spells_the_answer(client: Client, tab: Tab) -> None:
    page = mount(tab, "chalkboard")
    draw(page, "CHALK")
    expect(page.locator(".pz-chalk-twin")).to_contain_text("spell the answer that was received", timeout=WAIT_MS)
    trace = trace_of(client, page)
    assert text_of(page) == trace["text"] == TEXT
    assert page.locator(".pz-chalk-row").count() == len(trace["entries"]) == trace["totals"]["steps"]
    drafted = [token for entry in trace["entries"] for token in entry["drafted"]]
    for fate in FATES:
        shown = page.locator(f".pz-chalk-row .pz-chalk-{fate}").count()
        assert shown == sum(token["fate"] == fate for token in drafted) > 0, fate
    recovered = sum((entry["next"] or {}).get("kind") == "recovered" for entry in trace["entries"])
    assert page.locator(".pz-chalk-rejected .pz-chalk-fix").count() == recovered
    totals = trace["totals"]
    summary = page.locator(".pz-chalk-summary")
    expect(summary).to_contain_text(f"{totals['accepted']} of {totals['drafted']} drafted tokens accepted")
    expect(summary).to_contain_text(f"{1 + totals['accepted'] / totals['drafts']:.2f} tokens a verification")
    saved = trace["num_output_tokens"] - totals["steps"]
    expect(summary).to_contain_text(f"{trace['num_output_tokens']} tokens in {totals['steps']} steps: {saved} steps")
    page.reload()
    page = mount(tab, "chalkboard", page.evaluate("location.search"))  # a permalink
    expect(page.locator(".pz-chalk-row")).to_have_count(len(trace["entries"]), timeout=WAIT_MS)
    assert text_of(page) == trace["text"]
    assert tab.problems == []


def test_a_token_tells_of_itself_and_the_keys_walk_over_the_board(client: Client, tab: Tab) -> None:
    page = mount(tab, "chalkboard")
    draw(page, "CHALK")
    expect(page.locator(".pz-chalk-twin .pz-ok")).to_be_visible(timeout=WAIT_MS)
    entry = trace_of(client, page)["entries"][2]  # one right of three
    rejected = page.locator(".pz-chalk-row").nth(2).locator(".pz-chalk-rejected")
    rejected.hover()
    ledge = page.locator(".pz-chalk-ledge")
    expect(ledge).to_contain_text(re.compile(rf"rejected · position {entry['position'] + 1}, id "))
    expect(ledge).to_contain_text("p (model) 0.250 · q (suffix) 0.750")
    assert page.locator("#probe [data-place][tabindex='0']").count() == 1
    rejected.focus()
    page.keyboard.press("ArrowRight")
    expect(ledge).to_contain_text("never judged")
    page.keyboard.press("Home")
    expect(ledge).to_contain_text("accepted · position")
    page.keyboard.press("ArrowUp")
    expect(ledge).to_contain_text(f"position {trace_of(client, page)['entries'][1]['position']},")
    slider = page.locator(".pz-chalk-slider")
    slider.fill("3")
    assert page.locator(".pz-chalk-row:not([hidden])").count() == 3
    expect(page.locator(".pz-chalk-count")).to_contain_text("step 3 of")
    page.get_by_role("button", name="Replay slowly").click()
    expect(page.locator("[data-phase='drafting']:not([hidden])")).to_have_count(1, timeout=WAIT_MS)
    page.get_by_role("button", name="Pause").click()
    assert page.locator("[data-phase='drafting']:not([hidden])").count() == 0
    assert tab.problems == []


def test_rows_come_while_it_is_written_and_stop_ends_it(client: Client, tab: Tab) -> None:
    page = mount(tab, "chalkboard")
    text = "a<img src=x onerror=window.hacked=1>\u202e{{b}}\t"
    draw(page, f"CHALK SLOWER ENDLESS SAY«{text}»")
    page.wait_for_function("document.querySelectorAll('.pz-chalk-row').length > 3", timeout=WAIT_MS)
    expect(page.locator(".pz-chalk-summary")).to_contain_text("being written")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".pz-chalk-twin .pz-ok")).to_be_visible(timeout=WAIT_MS)
    trace = trace_of(client, page)
    assert trace["finish_reason"] == "abort"
    assert text_of(page) == trace["text"]
    assert (text * 20).startswith(trace["text"].rstrip("\ufffd"))
    assert page.locator("#probe img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert tab.problems == []


def test_what_is_not_there_is_said(client: Client, tab: Tab) -> None:
    page = mount(tab, "chalkboard", "?request=nobody")
    expect(page.locator("#probe .pz-problem")).to_contain_text(
        "no trace is kept of a request 'nobody'", timeout=WAIT_MS
    )
    expect(page.locator(".pz-chalk-empty")).to_contain_text("The board is clean", timeout=WAIT_MS)
    draw(page, "FAIL")
    expect(page.locator("#probe .pz-problem")).to_contain_text("asked to fail", timeout=WAIT_MS)
    assert [each for each in tab.problems if "404 (Not Found)" not in each] == []


def test_little_motion_has_no_replay_and_no_model_has_a_way_to_one(client: Client, browser: Browser, tab: Tab) -> None:
    tab.page.emulate_media(reduced_motion="reduce")
    page = mount(tab, "chalkboard")
    draw(page, "CHALK")
    expect(page.locator(".pz-chalk-twin .pz-ok")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Replay slowly")).to_be_hidden()
    expect(page.locator(".pz-chalk-player")).to_contain_text("use the slider")
    client.unload()
    try:
        page = mount(tab, "chalkboard")
        expect(page.locator(".pz-chalk-empty a")).to_have_attribute("href", "/models", timeout=WAIT_MS)
        expect(page.locator("#probe .pz-primary")).to_be_disabled()
    finally:
        client.load()
    assert tab.problems == []
