"""The KV map over a real server with fake engines: its figures are the API's, a block and an owner can be looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.app.harness import Client, make_home, make_settings, serving
from tests.app.test_block_maps import BEGINNING, answering
from tests.browser import Tab, open_tab
from tests.ui.kv_map_page import mount_map
from ui.site import mount_site

WAIT_MS = 20_000

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("site"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def engine_of(client: Client) -> str:
    found: str = client.get("/api/engines").json()["engines"][-1]["id"]
    return found


@pytest.fixture(scope="module")
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    """One tab for all tests that need no other: a page takes its time to load."""
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        opened.go("/monitor")
        mount_map(opened.page, engine_of(client))
        yield opened


@pytest.fixture
def page(tab: Tab) -> Iterator[Page]:
    yield tab.page
    assert tab.problems == []


def until_held_by(page: Page, owners: int) -> None:
    expect(page.locator(".pz-kv-owners tbody tr[data-owner]")).to_have_count(owners, timeout=WAIT_MS)


def count(page: Page, name: str) -> Locator:
    return page.locator(f"[data-count={name}]")


def fact(page: Page, name: str) -> Locator:
    return page.locator(f"[data-fact=kv_fact_{name}]")


def pause(page: Page) -> None:
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".pz-kv-time")).to_contain_text("paused at")


def of_the_shown_moment(client: Client, page: Page, engine: str, **asked: Any) -> dict[str, Any]:
    """What the API says of the moment at which the page is paused."""
    at = float(page.locator(".pz-kv-slider").input_value()) + 0.26
    found: dict[str, Any] = client.get(f"/api/engines/{engine}/blocks", params={"at": at, **asked}).json()
    return found


def test_the_figures_are_the_apis(page: Page, client: Client) -> None:
    engine = engine_of(client)
    with answering(client, (BEGINNING, False), (BEGINNING + "x", True)):
        until_held_by(page, 2)
        page.wait_for_timeout(1200)  # a frame or two of both
        pause(page)
    told = of_the_shown_moment(client, page, engine)
    counts = told["counts"]
    expect(count(page, "held")).to_have_text(re.compile(rf"^{counts['held']} · [\d.]+ %$"))
    for name in ("cached", "free", "shared", "ahead"):
        expect(count(page, name)).to_have_text(str(counts[name]))
    expect(count(page, "waste")).to_have_text(f"{counts['empty_slots']} (blocks: {counts['partial']})")
    assert counts["held"] > 6
    assert counts["shared"] == 4
    rows = page.locator(".pz-kv-owners tbody tr[data-owner]")
    for row, owner in zip(rows.all(), told["owners"], strict=True):
        cells = row.locator("td.pz-figure").all_inner_texts()
        tokens = f"{owner['num_computed_tokens']} of {owner['num_tokens']}"
        figures = [owner[name] for name in ("blocks", "shared", "ahead", "num_cached_tokens")]
        assert cells == [tokens, *map(str, figures)]


def test_a_shared_block_names_its_owners_and_an_owner_its_blocks(page: Page, client: Client) -> None:
    """At the moment at which the test before paused."""
    engine = engine_of(client)
    owners = of_the_shown_moment(client, page, engine)["owners"]
    table = of_the_shown_moment(client, page, engine, owner=owners[0]["id"])["table"]["tables"][0]["blocks"]
    page.locator(".pz-kv-map").focus()
    page.keyboard.press("Home")
    for _ in range(table[0] - 1):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".pz-kv-detail h3")).to_have_text(f"Block {table[0]}")
    block = of_the_shown_moment(client, page, engine, block=table[0])["block"]
    expect(fact(page, "state")).to_have_text("shared by 2")
    expect(fact(page, "tokens")).to_have_text("16 of 16")
    expect(fact(page, "hash")).to_have_text(block["hash"])
    expect(fact(page, "hits")).to_have_text(str(block["hits"]))
    expect(page.locator(".pz-kv-detail-owners li")).to_have_count(2)
    expect(page.locator(".pz-kv-detail-owners li").nth(1)).to_contain_text(owners[1]["request_id"][:8])
    page.keyboard.press("Enter")
    path = page.locator(".pz-kv-path:not([hidden]) .pz-figure")
    expect(path).to_contain_text(re.compile(rf"^{table[0]}[–,]"))
    spelled = [int(end) for part in path.inner_text().split(", ") for end in (part.split("–") * 2)[:2]]
    assert (spelled[0], spelled[-1]) == (table[0], table[-1])
    page.keyboard.press("Escape")
    expect(page.locator(".pz-kv-path:not([hidden])")).to_have_count(0)


def test_live_is_now_and_an_earlier_moment_is_as_it_was(page: Page, client: Client) -> None:
    engine = engine_of(client)
    page.get_by_role("button", name="Live").click()
    expect(page.locator(".pz-kv-time")).to_have_text("live")
    expect(count(page, "held")).to_have_text("0 · 0 %", timeout=WAIT_MS)
    expect(page.get_by_text("Nobody holds a block now.")).to_be_visible()
    history = client.get(f"/api/engines/{engine}/blocks/history").json()
    held = history["columns"]["held"]
    at = max(range(len(held)), key=lambda i: held[i])
    goto = "(node, time) => { node.value = time; node.dispatchEvent(new Event('input')); }"
    page.locator(".pz-kv-slider").evaluate(goto, history["t"][at])
    expect(page.locator(".pz-kv-time")).to_contain_text("paused at")
    told = of_the_shown_moment(client, page, engine)["counts"]
    assert told["held"] > 6
    expect(count(page, "held")).to_have_text(re.compile(rf"^{told['held']} · "))
    until_held_by(page, 2)
    page.get_by_role("button", name="Live").click()
    until_held_by(page, 0)


def test_will_it_fit(page: Page) -> None:
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".pz-kv-fit-result")).to_have_text("Give a prompt or a number of tokens.")
    page.get_by_label("or tokens").fill("100")
    page.get_by_label("Answer tokens").fill("60")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("[data-fits=yes]")).to_be_visible()
    expect(page.locator("[data-fit=needed]")).to_have_text("10")
    expect(page.locator("[data-fit=free]")).to_have_text("100 of 100")
    expect(page.locator("[data-fit=cached]")).to_contain_text("not available")
    page.get_by_label("or tokens").fill("5000")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("[data-fits=never]")).to_contain_text("longer than the 512 tokens")


def test_a_narrow_screen_has_a_strip_and_everything_else(client: Client, browser: Browser) -> None:
    with open_tab(browser, str(client.base_url).rstrip("/"), size=(390, 844), theme="light", locale="es-ES") as tab:
        page = tab.go("/monitor")
        mount_map(page, engine_of(client))
        expect(count(page, "free")).to_be_visible(timeout=WAIT_MS)
        page.wait_for_selector(".pz-kv-map[data-draw-ms]")
        assert page.locator(".pz-kv-cells").evaluate("(node) => node.clientHeight") <= 60
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        expect(page.get_by_role("button", name="Pausar")).to_be_visible()
        assert tab.problems == []


def test_an_engine_that_ends_and_none_at_all(page: Page, tab: Tab, client: Client) -> None:
    engine = engine_of(client)
    assert client.unload()["state"] == "succeeded"
    expect(page.locator(".pz-kv-card [role=status]").first).to_contain_text("stale", timeout=WAIT_MS)
    page.evaluate("window.kvMap.destroy()")
    mount_map(page, engine)
    expect(page.locator(".pz-problem")).to_contain_text("there is no engine", timeout=WAIT_MS)
    tab.problems.clear()  # the browser's own line about the 404
    page.evaluate("window.kvMap.destroy()")
    mount_map(page, None)
    expect(page.get_by_text("No model is loaded, so there are no blocks.")).to_be_visible()
