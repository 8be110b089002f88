"""The Requests page over a real server whose engines say what they are told: every figure is what the API says."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 30_000

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("requests"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def ask(client: Client, prompt: str, **fields: Any) -> dict[str, Any]:
    """A completion's end, as /api/requests tells it."""
    client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 20, **fields})
    newest = client.get("/api/requests?limit=1").json()["requests"][0]["id"]
    found: dict[str, Any] = client.get(f"/api/requests/{newest}").json()
    return found


def ask_beside(client: Client, prompt: str) -> threading.Thread:
    """The same while the test goes on."""

    def run() -> None:
        with Client(base_url=client.base_url, timeout=60, trust_env=False) as own:
            own.post("/v1/completions", json={"prompt": prompt, "max_tokens": 400})

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def cell(page: Page, request_id: str, column: str) -> str:
    return page.locator(f"[data-request='{request_id}'] [data-col={column}]").inner_text()


def shown_seconds(text: str) -> float:
    """ "1.30 s" or "32 ms" as a number."""
    number, unit = text.split()
    return float(number) * {"ms": 0.001, "s": 1.0}[unit]


def test_the_list_and_the_detail_say_what_the_api_says(tab: Tab, client: Client) -> None:
    found = ask(client, "QUEUED SLOW DRAFT " + "word " * 40, seed=7)
    page = tab.go("/requests")
    link = page.locator(f"[data-request='{found['id']}'] .pz-req-link")
    expect(link).to_have_text(found["id"][:8], timeout=WAIT_MS)
    assert shown_seconds(cell(page, found["id"], "queue")) == pytest.approx(found["queue_s"], abs=0.001)
    assert shown_seconds(cell(page, found["id"], "ttft")) == pytest.approx(found["ttft_s"], abs=0.006)
    assert cell(page, found["id"], "tokens") == f"{found['num_prompt_tokens']} → {found['num_output_tokens']}"
    assert cell(page, found["id"], "accepted") == f"{round(100 * found['accepted'] / found['drafted'])} %"
    assert cell(page, found["id"], "ended") == "max_tokens reached"
    assert "slow" in cell(page, found["id"], "state")
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/requests?id={found['id']}")
    why = page.locator(".pz-req-why")
    expect(why).to_contain_text("waited 500 ms: no free blocks, 2 ahead", timeout=WAIT_MS)
    expect(why).to_contain_text(f"prompt of {found['num_prompt_tokens']} tokens computed in 800 ms")
    expect(why).to_contain_text("shared the engine with 7 others")
    assert page.locator(".pz-req-bar[data-phase=prefill]").count() == len(found["timeline"]["chunks"])
    page.click("[data-part=course] summary")
    phases = page.locator("[data-part=course] table").first.locator("tbody tr")
    assert phases.count() == len(found["timeline"]["phases"])
    for row, phase in zip(phases.all(), found["timeline"]["phases"], strict=True):
        _, start, end, took = (cell.inner_text() for cell in row.locator("td").all())
        assert shown_seconds(start) == pytest.approx(phase["start_s"], abs=0.006)
        assert shown_seconds(end) == pytest.approx(phase["end_s"], abs=0.006)
        assert shown_seconds(took) == pytest.approx(phase["end_s"] - phase["start_s"], abs=0.006)
    facts = {fact: page.locator(f"[data-fact={fact}]").inner_text() for fact in ("seed", "drafts", "acceptance")}
    assert facts == {"seed": "7", "drafts": str(found["drafts"]), "acceptance": "67 %"}
    page.keyboard.press("Escape")
    expect(link).to_be_focused(timeout=WAIT_MS)
    assert tab.problems == []


def test_a_request_is_followed_from_the_queue_to_its_cancel(tab: Tab, client: Client) -> None:
    page = tab.go("/requests")
    thread = ask_beside(client, "QUEUED PATIENT SLOW ENDLESS " + "word " * 12)
    newest = page.locator("tbody tr").first
    expect(newest.locator("[data-col=ended]")).to_have_text("waits: no free blocks, 2 ahead", timeout=WAIT_MS)
    expect(newest.locator("[data-col=ended]")).to_have_text(re.compile(r"prompt \d+ of \d+ tokens"), timeout=WAIT_MS)
    expect(newest.locator("[data-col=state]")).to_have_text("running", timeout=WAIT_MS)
    newest.locator(".pz-req-link").click()
    page.get_by_role("button", name="Cancel request").click(timeout=WAIT_MS)
    toast = page.locator(".pz-toast").filter(has_text="Stopped at token")
    expect(toast).to_be_visible(timeout=WAIT_MS)
    thread.join(20)
    ended = client.get("/api/requests?limit=1").json()["requests"][0]
    assert ended["stop_cause"] == "cancelled"
    expect(toast).to_contain_text(f"Stopped at token {ended['num_output_tokens']}")
    expect(page.locator("[data-fact=ended]")).to_have_text(f"stopped at token {ended['num_output_tokens']}")
    expect(page.get_by_role("button", name="Cancel request")).to_have_count(0, timeout=WAIT_MS)
    assert tab.problems == []


def test_filters_live_in_the_address(tab: Tab, client: Client) -> None:
    failed = ask(client, "FAIL")
    page = tab.go("/requests")
    page.get_by_role("combobox", name="State").select_option("failed")
    page.wait_for_url("**/requests?state=failed")
    rows = page.locator("tbody tr")
    listed = client.get("/api/requests?state=failed").json()["requests"]
    expect(rows).to_have_count(len(listed), timeout=WAIT_MS)
    page.fill("#pz-req-search", f"cmpl-{failed['id'][:12]}")
    page.wait_for_url("**/requests?state=failed&q=cmpl-*")
    expect(rows).to_have_count(1, timeout=WAIT_MS)
    page.reload()
    expect(rows).to_have_count(1, timeout=WAIT_MS)
    expect(page.locator("#pz-req-search")).to_have_value(f"cmpl-{failed['id'][:12]}")
    page.fill("#pz-req-search", "ffffffffffff")
    expect(page.get_by_text("No request fits these filters.")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="Clear").click()
    page.wait_for_url("**/requests")
    assert tab.problems == []


def test_older_ones_are_loaded_when_asked_for(tab: Tab, client: Client) -> None:
    for _ in range(65):
        client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1})
    total = len(client.get("/api/requests?limit=1000").json()["requests"])
    page = tab.go("/requests")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(60, timeout=WAIT_MS)
    page.get_by_role("button", name="Load older").click()
    expect(rows).to_have_count(total, timeout=WAIT_MS)
    expect(page.get_by_text(f"All {total} are shown.")).to_be_visible()
    assert tab.problems == []


def test_texts_are_text_and_can_be_deleted(tab: Tab, client: Client) -> None:
    client.put("/api/settings", json={"settings": {"store_bodies": True}})
    try:
        kept = ask(client, "<img src=x onerror=alert(1)> SAY«<b>bold</b>»")
    finally:
        client.put("/api/settings", json={"settings": {"store_bodies": False}})
    page = tab.go(f"/requests?id={kept['id']}")
    texts = page.locator("[data-part=texts] pre")
    expect(texts.first).to_have_text(kept["body"]["prompt"], timeout=WAIT_MS)
    expect(texts.nth(1)).to_have_text("<b>bold</b>")
    assert page.get_by_role("link", name="Replay in the Playground").get_attribute("href") == (
        f"/playground?tab=completion&replay={kept['id']}"
    )
    page.get_by_role("button", name="Delete the texts").click()
    page.locator("dialog .pz-danger").click()
    expect(page.locator("[data-part=texts] a")).to_have_attribute("href", "/settings?tab=retention", timeout=WAIT_MS)
    assert client.get(f"/api/requests/{kept['id']}").json()["body"] is None
    assert tab.problems == []


def test_an_unknown_request_and_a_server_that_is_away(tab: Tab) -> None:
    page = tab.go("/requests?id=cafe")
    expect(page.locator(".pz-problem")).to_contain_text("there is no request 'cafe'", timeout=WAIT_MS)
    page.get_by_role("button", name="All requests").click()
    expect(page.locator("tbody tr").first).to_be_visible(timeout=WAIT_MS)
    page.route("**/api/requests?*", lambda route: route.abort())
    page.get_by_role("combobox", name="Source").select_option("chat")
    expect(page.locator(".pz-problem")).to_have_text(
        "The server does not answer. Is it still running?", timeout=WAIT_MS
    )
    page.unroute("**/api/requests?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("No request fits these filters.")).to_be_visible(timeout=WAIT_MS)
    assert not [problem for problem in tab.problems if "404" not in problem and "ERR_FAILED" not in problem]


def test_every_control_is_there_on_a_narrow_screen(client: Client, browser: Browser) -> None:
    with open_tab(browser, str(client.base_url).rstrip("/"), size=(390, 844), locale="es-ES") as tab:
        page = tab.go("/requests")
        expect(page.locator("tbody tr").first).to_be_visible(timeout=WAIT_MS)
        for label in ("Modelo", "Estado", "Origen", "Recibida"):
            expect(page.get_by_role("combobox", name=label, exact=True)).to_be_visible()
        expect(page.get_by_role("searchbox", name="El id empieza por")).to_be_visible()
        expect(page.get_by_role("checkbox", name="Solo lentas")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.locator(".pz-req-link").first.click()
        expect(page.locator(".pz-req-waterfall")).to_be_visible(timeout=WAIT_MS)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert tab.problems == []
