"""The race in a browser: its figures are those of the job, its progress survives a reload, and differences are told."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from tests.ui.mounting import mount
from ui.site import mount_site

WAIT_MS = 60_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("race"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def start(page: Page, prompt: str, **fields: str) -> None:
    button = page.get_by_role("button", name="Start the race")
    expect(button).to_be_enabled(timeout=WAIT_MS)
    page.locator("#probe .pz-segment").nth(1).click()
    page.fill("#probe .pz-board-prompt", prompt)
    for label, value in {
        "Max tokens": "24",
        "Timed runs": "3",
        **{k.replace("_", " "): v for k, v in fields.items()},
    }.items():
        page.locator("#probe").get_by_label(label).fill(value)
    button.click()


def newest(client: Client) -> dict[str, Any]:
    jobs = client.get("/api/jobs").json()["jobs"]
    found: dict[str, Any] = next(job["result"] for job in jobs if job["kind"] == "race" and job["result"])
    return found


def test_a_race_survives_a_reload_and_shows_what_the_job_says(client: Client, tab: Tab) -> None:
    page = mount(tab, "race")
    other = threading.Thread(target=lambda: client.post("/v1/completions", json={"prompt": "HANG"}, timeout=200))
    other.start()
    client.until(lambda: client.get("/api/requests?limit=1").json()["requests"])
    start(page, "CHALK SLOW")
    waits = "waiting until other requests have ended (1 running)"
    expect(page.locator(".pz-race-stage")).to_contain_text(waits, timeout=WAIT_MS)
    page = mount(tab, "race")  # loads the page anew
    expect(page.locator(".pz-race-stage")).to_contain_text(waits, timeout=WAIT_MS)
    request_id = client.get("/api/requests?limit=1").json()["requests"][0]["id"]
    client.post(f"/api/requests/{request_id}/cancel")
    other.join(60)
    verdict = page.locator(".pz-race-verdict")
    expect(verdict).to_be_visible(timeout=WAIT_MS)
    result = newest(client)
    speedup = result["speedup"]
    expect(verdict).to_contain_text(f"Drafts pay: {speedup['value']:.2f} times as fast")
    expect(verdict).to_contain_text(f"95 % interval {speedup['low']:.2f} to {speedup['high']:.2f}, of 3 runs each")
    expect(page.locator(".pz-race-identity")).to_have_text("The same tokens in all 4 runs with drafts.")
    figures = page.locator(".pz-race-figures")
    for way in ("plain", "speculative"):
        expect(figures).to_contain_text(f"{result['ways'][way]['tokens_per_s']['median']:.1f}")
    drafts = result["ways"]["speculative"]
    expect(figures).to_contain_text(f"{drafts['accepted']} / {drafts['drafted']}")
    page.get_by_text("All timed runs").click()
    expect(page.locator("#probe details tbody tr")).to_have_count(6)
    shows_the_replay(page, result)
    expect(page.locator(".pz-race-earlier")).to_have_count(1)
    expect(page.locator(".pz-race-earlier")).to_contain_text(f"{speedup['value']:.2f}×")
    expect(page.locator(".pz-race-replay")).to_contain_text("one after the other, never at once")
    assert tab.problems == []


def shows_the_replay(page: Page, result: dict[str, Any]) -> None:
    """At each moment of the clock both lanes have what their runs had given by then."""
    slider = page.get_by_label("Time since the prompt was sent")
    end = max(result["replay"][way]["times"][-1][0] for way in ("plain", "speculative"))
    for moment in (0, int(end / 3), int(end) + 1):
        slider.fill(str(moment))
        for way in ("plain", "speculative"):
            given = "".join(text for at, _, text in result["replay"][way]["times"] if at <= moment)
            shown = page.locator(f".pz-race-{way} .pz-race-text").evaluate(
                "(node) => [...node.children].filter((each) => !each.hidden).map((each) => each.textContent).join('')"
            )
            assert shown == given, (moment, way)


def test_a_race_can_be_cancelled(client: Client, tab: Tab) -> None:
    page = mount(tab, "race")
    start(page, "HANG")
    expect(page.locator("#probe")).to_contain_text("The race is on", timeout=WAIT_MS)
    with page.expect_response(re.compile(r"/api/jobs\?kind=race")):  # the earlier races, listed anew behind the end
        page.locator("#probe").get_by_role("button", name="Cancel").click()
    page.wait_for_timeout(200)  # none of them takes the end's place
    expect(page.locator(".pz-race-stage")).to_have_text("cancelled", timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Start the race")).to_be_visible()
    start(page, "word " * 400)
    expect(page.locator("#probe .pz-problem")).to_contain_text("context too long", timeout=WAIT_MS)
    assert [each for each in tab.problems if "400 (Bad Request)" not in each] == []


def test_a_real_mismatch_is_told_with_its_margins(browser: Browser, tmp_path: Path) -> None:
    with (
        serving(make_settings(make_home(tmp_path), "lying"), mount_site) as client,
        open_tab(browser, str(client.base_url).rstrip("/")) as tab,
    ):
        client.load()
        page = mount(tab, "race")
        start(page, "CHALK", Timed_runs="1")
        identity = page.locator(".pz-race-identity")
        says = "2 of 2 runs with drafts differ, first at token 5: a real mismatch"
        expect(identity).to_contain_text(says, timeout=WAIT_MS)
        expect(identity).to_contain_text("(ahead by 1.0000 nats)")
        expect(identity).to_contain_text("This engine promises the same bits")
        expect(page.locator(".pz-race-verdict")).to_contain_text("too few runs for an interval")
        assert tab.problems == []


def test_an_engine_without_drafts_cannot_race(client: Client, tab: Tab) -> None:
    client.unload()
    client.load(speculation="off")
    page = mount(tab, "race")
    expect(page.locator(".pz-race-reason")).to_contain_text("cannot race: it was loaded without", timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Start the race")).to_be_disabled()
    assert tab.problems == []
