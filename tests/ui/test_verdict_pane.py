"""The verdict and Monitor's tab on speculation in Chromium: what they show is what the API says, in every state."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000
MOUNT = """async ([module, name, options]) => {
  const { api } = await import("/assets/js/api.js");
  const { SampleWindow } = await import("/assets/js/series.js");
  const pane = await import(`/assets/js/${module}`);
  const host = document.createElement("div");
  host.id = "host";
  host.className = "pz";
  document.querySelector(".pz-page-head").parentElement.replaceChildren(host);
  const id = (await api.engines())[0]?.id ?? null;
  const tab = {
    engine: () => id,
    range: () => ({ since: 0, until: 0, live: true }),
    onWindow(listener) {
      const draw = async () => {
        const now = Date.now() / 1000;
        window.samples = await api.samples(now - 120, now, 1);
        listener(new SampleWindow(120, window.samples), { window: [now - 120, now], revision: "a" });
      };
      window.redraw = draw;
      draw();
      return () => {};
    },
  };
  window.mounted = pane[name](host, options ?? tab);
}"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("verdict"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def mount(tab: Tab, module: str = "speculation_tab.js", name: str = "mount", options: Any = None) -> Page:
    page = tab.go("/models")
    page.wait_for_selector(".pz-page-head")
    page.evaluate(MOUNT, [module, name, options])
    return page


def engine_id(client: Client) -> str:
    found: str = client.get("/api/engines").json()["engines"][0]["id"]
    return found


def ask(client: Client, prompt: str, **fields: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 4, **fields}
    assert client.post("/v1/completions", json=body).status_code == 200


def verdict(client: Client, word: str) -> dict[str, Any]:
    """What the API says once this table has arrived."""
    ask(client, f"MEASURED {word}")
    url = f"/api/engines/{engine_id(client)}/verdict"
    before = client.get(url).json()["now"]
    found: dict[str, Any] = client.until(
        lambda: body if ((body := client.get(url).json())["measured_at"] or 0) > before - 2 else None
    )
    return found


def test_every_figure_of_the_verdict_is_the_servers(client: Client, tab: Tab) -> None:
    ask(client, "DRAFT hi", max_tokens=40)
    url = f"/api/engines/{engine_id(client)}/verdict"
    client.until(lambda: sum(each["accepted"] for each in client.get(url).json()["positions"]) == 80)  # all are counted
    told = verdict(client, "mixed")
    page = mount(tab)
    pane = page.locator(".pz-spec-verdict")
    expect(pane).to_have_attribute("data-state", "pays", timeout=WAIT_MS)
    figures = f"{told['speedup']:.2f} times as fast as without (95 %: {told['low']:.2f} to {told['high']:.2f})"
    expect(pane.locator(".pz-spec-answer")).to_have_text(f"Speculation pays: {figures}.")
    dial = pane.locator(".pz-dial")
    label = f"Accepted drafts per step: a = {told['accepted_per_step']:.2f}. Break-even: a* = {told['break_even']:.2f}."
    assert (dial.get_attribute("aria-label") or "").startswith(label)
    expect(dial.locator(".pz-dial-middle")).to_have_text(f"×{told['speedup']:.2f}")
    expect(pane.locator(".pz-spec-advice li")).to_contain_text(["Leave it on.", "With 5 or more requests at once"])
    rows = pane.locator(".pz-spec-whole > .pz-table-wrap tbody tr")
    expect(rows).to_have_count(len(told["buckets"]))
    for index, bucket in enumerate(told["buckets"]):
        cells = rows.nth(index).locator("td").all_inner_texts()
        assert cells[2] == {"pays": "pays", "costs": "costs you"}[bucket["state"]]
        assert cells[3] == f"×{bucket['speedup']:.2f} {bucket['low']:.2f}–{bucket['high']:.2f}"
        assert cells[4:6] == [f"{bucket['accepted_per_step']:.2f}", f"{bucket['break_even']:.2f}"]
        assert cells[6].startswith(f"{bucket['plain_ms']:.1f} ms {bucket['plain_steps']} steps, ")
        assert cells[7:9] == [f"{bucket['draft_ms']:.2f} ms", f"{bucket['verify_ms']:.1f} ms"]
        assert cells[9] == f"{bucket['steps']:,}"
    places = page.locator(".pz-spec-places tbody tr")
    expect(places).to_have_count(len(told["positions"]))
    for place, counts in enumerate(told["positions"]):
        text = places.nth(place).inner_text()
        assert f"{counts['accepted']} / {counts['drafted']}" in text
        assert f"{counts['accepted']} / {counts['verified']}" in text
    (suffix,) = [each for each in told["proposers"] if each["name"] == "suffix"]
    row = page.locator(".pz-spec-proposers tbody tr", has_text="suffix")
    counts = [str(suffix[name]) for name in ("drafts", "drafted", "accepted")]
    assert row.locator("td").all_inner_texts()[2:5] == counts
    assert tab.problems == []


def test_every_figure_over_time_is_a_sampled_one(client: Client, tab: Tab) -> None:
    asking = threading.Thread(target=lambda: ask(client, "DRAFT SLOW", max_tokens=130))
    asking.start()
    page = mount(tab)
    now = page.locator("[data-plot=spec_acceptance]")
    client.until(lambda: page.evaluate("window.redraw()") or now.inner_text() == "67 %")
    columns = json.loads(page.evaluate("JSON.stringify(window.samples.columns)"))
    asking.join()
    last = {name: next(v for v in reversed(values) if v is not None) for name, values in columns.items() if any(values)}
    drafted, accepted = last["drafted_tokens_per_s"], last["accepted_tokens_per_s"]
    assert accepted / drafted == pytest.approx(2 / 3, abs=0.01)
    expect(page.locator("[data-plot=spec_tokens]")).to_have_text(f"{drafted:.1f}")
    expect(page.locator("[data-plot=spec_length]")).to_have_text(f"{1 + accepted / last['drafts_per_s']:.2f}")
    expect(page.locator("[data-plot=spec_gain]")).to_have_text(f"{last['speculation_gain']:.2f} ×")
    expect(page.locator("[data-plot=spec_times]")).to_have_text("2.00 ms")
    page.locator(".pz-spec-strip-canvas").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pz-spec-strip-note")).to_contain_text("1: 100 %")
    expect(page.locator(".pz-spec-strip-note")).to_contain_text("3: 0 %")
    page.locator(".pz-spec-strip-canvas ~ details summary").click()
    expect(page.locator(".pz-spec-strip-canvas ~ details tbody tr").last).to_contain_text("100 %")
    page.evaluate("window.mounted.destroy()")
    expect(page.locator("#host")).to_be_empty()
    assert tab.problems == []


def test_speculation_is_switched_and_set_from_the_tab(client: Client, tab: Tab) -> None:
    page = mount(tab)
    toggle = page.locator(".pz-spec-toggle")
    expect(toggle).to_have_text("Switch off", timeout=WAIT_MS)
    page.select_option("#pz-spec-k", "3")
    expect(page.locator(".pz-spec-controls")).to_contain_text("suffix drafts at most 3 tokens a step", timeout=WAIT_MS)
    page.select_option("#pz-spec-rule", "rejection")
    expect(page.locator(".pz-spec-controls")).to_contain_text("accepted by rejection", timeout=WAIT_MS)
    toggle.click()
    expect(page.locator(".pz-spec-verdict")).to_have_attribute("data-state", "off", timeout=WAIT_MS)
    expect(page.locator(".pz-spec-verdict")).to_contain_text("Switched off by the operator.")
    told = client.get("/api/engines").json()["engines"][0]["speculation"]
    assert (told["enabled"], told["num_speculative_tokens"], told["rule"]) == (False, 3, "rejection")
    expect(toggle).to_have_text("Switch on", timeout=WAIT_MS)
    toggle.click()
    expect(page.locator(".pz-spec-verdict")).not_to_have_attribute("data-state", "off", timeout=WAIT_MS)
    url = f"/api/engines/{engine_id(client)}/speculation"
    client.post(url, json={"num_speculative_tokens": 8, "rule": "match"})
    assert tab.problems == []


def test_the_self_test_runs_in_the_tab_and_shows_its_parts(client: Client, tab: Tab) -> None:
    page = mount(tab)
    pane = page.locator(".pz-spec-selftest")
    expect(pane).to_contain_text("not tested yet", timeout=WAIT_MS)
    pane.get_by_role("button", name="Run the self-test").click()
    expect(pane.locator(".pz-finding")).to_have_count(3, timeout=WAIT_MS)
    expect(pane).to_contain_text("suffix: passed")
    expect(pane).to_contain_text("Model aaaa, drafter bbbb")
    expect(pane.get_by_role("button", name="Run the self-test")).to_be_enabled()
    assert tab.problems == []


def test_without_evidence_no_figure_is_claimed(client: Client, tab: Tab) -> None:
    told = verdict(client, "few")
    assert told["state"] == "not_enough_data"
    page = mount(tab, "verdict.js", "mountVerdict", {"compact": True})
    pane = page.locator(".pz-spec-verdict")
    expect(pane).to_have_attribute("data-state", "not_enough_data", timeout=WAIT_MS)
    expect(pane).to_contain_text("180 of 200 steps measured.")
    expect(pane.locator(".pz-dial-middle")).to_have_text("–")
    expect(pane.get_by_role("link")).to_have_attribute("href", "/monitor?tab=speculation")
    assert tab.problems == []


def test_a_server_that_fails_is_told_and_old_figures_are_dimmed(client: Client, tab: Tab) -> None:
    verdict(client, "pays")
    page = mount(tab)
    pane = page.locator(".pz-spec-verdict")
    expect(pane).to_have_attribute("data-state", "pays", timeout=WAIT_MS)

    def fail(route: Route) -> None:
        problem = {"title": "Internal error", "detail": "it broke", "status": 500}
        route.fulfill(status=500, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/verdict", fail)
    expect(pane.locator(".pz-problem")).to_contain_text("it broke", timeout=WAIT_MS)
    expect(pane).to_have_attribute("data-state", "error")
    page.unroute("**/verdict")
    expect(pane).to_have_attribute("data-state", "pays", timeout=WAIT_MS)
    assert [each for each in tab.problems if "500" not in each] == []


def test_without_a_model_it_says_so(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> None:
    settings = make_settings(make_home(tmp_path_factory.mktemp("empty")))
    with serving(settings, mount_site) as client, open_tab(browser, str(client.base_url).rstrip("/")) as tab:
        page = mount(tab)
        expect(page.locator(".pz-spec-verdict")).to_contain_text("No model is loaded.", timeout=WAIT_MS)
        expect(page.locator(".pz-spec-selftest")).to_contain_text("No model is loaded.")
        expect(page.locator(".pz-spec-toggle")).to_be_disabled()
        assert tab.problems == []
