"""Speculation on the pages: the load dialog's wishes, a loaded engine's line, its self-test, the acceptance plot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.app.test_drafters import write_drafter
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000
CARD = f".pz-model[data-model='{MODEL}']"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = make_home(tmp_path / "home")
    write_drafter(home / "drafters" / "mine")
    return home


def site(home: Path, mode: str = "normal") -> Iterator[Client]:
    with serving(make_settings(home, mode), mount_site) as client:
        yield client


@pytest.fixture
def client(home: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    yield from site(home, getattr(request, "param", "normal"))


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def test_the_load_dialog_hands_the_wishes_on(client: Client, tab: Tab, home: Path) -> None:
    page = tab.go("/models")
    page.locator(CARD).get_by_role("button", name="Load", exact=True).click()
    form = page.locator("dialog .pz-form")
    drafter = form.get_by_label("Drafter")
    expect(drafter.locator("option")).to_contain_text(["automatic", "mine (trained here)"], timeout=WAIT_MS)
    form.get_by_label("Speculation").select_option("off")
    expect(drafter).to_be_disabled()
    expect(form.get_by_label("Drafts a step")).to_be_disabled()
    form.get_by_label("Speculation").select_option("suffix")
    drafter.select_option("mine")
    expect(page.locator("dialog")).to_contain_text("speculation='suffix' drafts without one", timeout=WAIT_MS)
    form.get_by_label("Acceptance rule").select_option("rejection")
    form.get_by_label("Drafts a step").fill("16")
    expect(page.locator("dialog").get_by_role("button", name="Load", exact=True)).to_be_disabled()
    form.get_by_label("Drafts a step").fill("5")
    page.locator("dialog").get_by_role("button", name="Load", exact=True).click()
    expect(page.locator(CARD)).to_have_attribute("data-state", "loaded", timeout=WAIT_MS)
    options = client.get("/api/engines").json()["engines"][0]["options"]
    assert (options["speculation"], options["num_speculative_tokens"]) == ("suffix", 5)
    assert (options["speculation_rule"], options["drafter"]) == ("rejection", str(home / "drafters" / "mine"))
    assert [each for each in tab.problems if "400 (Bad Request)" not in each] == []  # the estimate with 16 drafts


def test_a_loaded_engine_shows_who_drafts_what_it_gains_and_how_its_self_test_ended(client: Client, tab: Tab) -> None:
    client.load()
    page = tab.go("/models")
    line = page.locator(f"{CARD} .pz-speculation")
    expect(line).to_contain_text("drafts by suffix, gain not measured yet", timeout=WAIT_MS)
    expect(line).to_contain_text("self-test not tested yet")
    client.post("/v1/completions", json={"prompt": "MEASURED pays", "max_tokens": 4})
    expect(line).to_contain_text("drafts by suffix, ×1.50 measured (pays)", timeout=WAIT_MS)
    client.post("/v1/completions", json={"prompt": "DRAFT PROPOSER OFF", "max_tokens": 4})
    expect(line).to_contain_text("suffix off: 12 % of its drafts were right", timeout=WAIT_MS)
    client.post("/v1/completions", json={"prompt": "PROPOSER ON", "max_tokens": 4})
    line.get_by_role("button").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("Does speculation change what the model says?")
    dialog.get_by_role("button", name="Run the self-test").click()
    expect(line).to_contain_text("self-test passed", timeout=WAIT_MS)
    expect(line).not_to_contain_text("suffix off", timeout=WAIT_MS)
    expect(page.locator(".pz-flag")).to_be_hidden()
    line.get_by_role("button").click()
    expect(dialog.locator(".pz-finding")).to_have_count(3, timeout=WAIT_MS)
    expect(dialog).to_contain_text("the same tokens at temperature 0: passed")
    expect(dialog).to_contain_text("0 of 15 answers differ")
    expect(dialog).to_contain_text("12 comparisons of 512 samples, smallest p")
    expect(dialog).to_contain_text("Model aaaa, drafter bbbb")
    assert tab.problems == []


@pytest.mark.parametrize("client", ["lying"], indirect=True)
def test_a_failing_pair_is_flagged_on_every_page(client: Client, tab: Tab) -> None:
    client.load()
    engine_id = client.get("/api/engines").json()["engines"][0]["id"]
    client.job(client.post(f"/api/engines/{engine_id}/selftest", json={"num_samples": 128}))
    page = tab.go("/")
    expect(page.locator(".pz-flag")).to_have_text("self-test failed", timeout=WAIT_MS)
    page = tab.go("/models")
    expect(page.locator(f"{CARD} .pz-verdict")).to_have_text("self-test FAILED", timeout=WAIT_MS)
    page.locator(f"{CARD} .pz-verdict").click()
    expect(page.locator("dialog")).to_contain_text("First difference, at token 1 of the prompt", timeout=WAIT_MS)
    assert tab.problems == []


def test_an_engine_without_drafts_says_so(client: Client, tab: Tab) -> None:
    client.load(speculation="off")
    page = tab.go("/models")
    line = page.locator(f"{CARD} .pz-speculation")
    expect(line).to_contain_text("no drafts: loaded without speculation", timeout=WAIT_MS)
    expect(line.locator(".pz-verdict")).to_be_hidden()


def test_acceptance_is_accepted_of_drafted_and_nothing_where_nothing_was_drafted(client: Client, tab: Tab) -> None:
    client.load()
    page = tab.go("/monitor")
    now = page.locator("[data-plot='acceptance']")
    expect(now).to_have_text("nothing drafted", timeout=WAIT_MS)
    body = {"prompt": "DRAFT SLOW", "max_tokens": 200}  # six seconds of drafts, two of three right
    seen = threading.Event()

    def ask() -> None:
        """Again and again: on a busy machine the page may take longer than one answer."""
        while not seen.is_set():
            client.post("/v1/completions", json=body)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        expect(now).to_have_text("67 %", timeout=WAIT_MS)
    finally:
        seen.set()
        asking.join()
    expect(now).to_have_text("nothing drafted", timeout=WAIT_MS)
    assert tab.problems == []
