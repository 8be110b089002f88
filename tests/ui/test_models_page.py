"""The models page over a real server with fake engines: what-if, profiles, receipts, idle time, busy unloads, jobs."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Browser, Route, expect

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 30_000
OTHER = "second"
TRAINER = Path(__file__).parents[1] / "app" / "fake_train_job.py"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("models"), MODEL, OTHER)
    settings = make_settings(home, jobs_command=f"{sys.executable} {TRAINER} --mode slow", drain_timeout_s=20.0)
    with serving(settings, mount_site) as client:
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def engine(client: Client, model: str = MODEL) -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in client.get("/api/engines").json()["engines"] if e["model_id"] == model)
    return found


def mib(size: int) -> str:
    """As the page writes it."""
    return f"{size / 2**30:.2f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.2f} MiB"


def test_the_estimate_follows_the_fields_and_a_way_out_makes_it_fit(tab: Tab, client: Client) -> None:
    page = tab.go("/models")
    page.click(f"[data-model={MODEL}] .pz-actions .pz-primary")
    found = client.post(f"/api/models/{MODEL}/estimate", json={"options": {}}).json()
    dialog = page.locator("dialog")
    fits = f"Fits: {mib(found['total_bytes'])}"
    expect(dialog.locator(".pz-fit")).to_contain_text(fits, timeout=WAIT_MS)
    for name in ("kv", "runtime"):
        figure = dialog.locator(f".pz-legend li:has(.pz-part-{name}) .pz-figure")
        expect(figure).to_have_text(mib(found[f"{name}_bytes"]))
    longest = next(each for each in client.get("/api/models").json()["models"] if each["id"] == MODEL)["context_length"]
    dialog.get_by_label("Context length").fill("9000000")
    expect(dialog.locator(".pz-estimate .pz-problem")).to_contain_text(f"between 1 and {longest:,} for this model")
    expect(dialog.locator(".pz-primary")).to_be_disabled()
    dialog.get_by_label("Context length").fill("")
    expect(dialog.locator(".pz-fit")).to_contain_text(fits, timeout=WAIT_MS)
    dialog.get_by_label("Memory limit").fill("0.1")
    expect(dialog.locator(".pz-estimate strong")).to_contain_text("Does not fit by", timeout=WAIT_MS)
    expect(dialog.locator(".pz-dialog-foot .pz-primary")).to_be_disabled()
    dialog.get_by_text("Without the memory limit").click()
    expect(dialog.locator(".pz-fit")).to_contain_text(fits, timeout=WAIT_MS)
    dialog.get_by_label("Requests at once").fill("4")
    dialog.get_by_label("Unload when idle").fill("15")
    expect(dialog.locator("label:has-text('Requests at once') .pz-source")).to_have_text("changed")
    dialog.locator(".pz-dialog-foot .pz-primary").click()
    expect(page.locator(f"[data-model={MODEL}] .pz-idle")).to_contain_text("Unloads in 1", timeout=WAIT_MS)
    options = engine(client)["options"]
    assert (options["max_num_seqs"], options["idle_unload_s"]) == (4, 900)
    assert tab.problems == []


def test_a_default_profile_is_shown_with_its_source_and_applied_by_a_reload(tab: Tab, client: Client) -> None:
    saved = {"options": {"max_num_seqs": 2}, "default": True}
    assert client.put(f"/api/models/{MODEL}/profiles/quick", json=saved).status_code == 200
    page = tab.go("/models")
    hint = page.locator(f"[data-model={MODEL}] .pz-reload")
    expect(hint).to_contain_text("max_num_seqs: 4 → 2", timeout=WAIT_MS)
    hint.get_by_text("Reload").last.click()
    dialog = page.locator("dialog")
    expect(dialog.get_by_label("Requests at once")).to_have_value("2", timeout=WAIT_MS)
    expect(dialog.locator("label:has-text('Requests at once') .pz-source")).to_have_text("quick")
    dialog.locator(".pz-dialog-foot .pz-primary").click()
    expect(hint).to_have_count(0, timeout=WAIT_MS)
    assert engine(client)["options"]["max_num_seqs"] == 2
    assert tab.problems == []


def test_idle_time_is_changed_and_kept_without_a_reload(tab: Tab, client: Client) -> None:
    page = tab.go("/models")
    line = page.locator(f"[data-model={MODEL}] .pz-idle")
    expect(line).to_contain_text("Stays loaded", timeout=WAIT_MS)
    line.locator("select").select_option("300")
    expect(line).to_contain_text(re.compile("Unloads in [45] min"), timeout=WAIT_MS)
    assert engine(client)["idle_unload_s"] == 300
    line.get_by_text("Keep loaded").click()
    expect(line).to_contain_text("Stays loaded", timeout=WAIT_MS)
    client.until(lambda: engine(client)["idle_unload_s"] is None)  # the page may say so before the call has come
    assert tab.problems == []


def test_an_older_answer_does_not_come_behind_a_newer_one(tab: Tab, client: Client) -> None:
    """What the page asks when the idle time changes is held back until that has changed once more."""
    page = tab.go("/models")
    line = page.locator(f"[data-model={MODEL}] .pz-idle")
    expect(line).to_contain_text("Stays loaded", timeout=WAIT_MS)
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/api/engines", lambda route: route.continue_() if held else held.append((route, route.fetch())))
    path = f"/api/engines/{engine(client)['id']}"
    assert client.patch(path, json={"idle_unload_s": 300}).status_code == 200
    deadline = time.monotonic() + WAIT_MS / 1000
    while not held:
        assert time.monotonic() < deadline, "the page did not ask"
        page.wait_for_timeout(50)
    assert client.patch(path, json={"idle_unload_s": 7200}).status_code == 200
    page.wait_for_timeout(3000)  # the header hears of it within a second, and a page that asks at once has its answer
    for route, response in held:
        route.fulfill(response=response)
    expect(line).to_contain_text("Unloads in 1 h", timeout=WAIT_MS)
    page.wait_for_timeout(500)
    expect(line).to_contain_text("Unloads in 1 h")
    assert client.patch(path, json={"idle_unload_s": None}).status_code == 200
    assert tab.problems == []


def test_a_figure_in_an_effective_setting_goes_on_while_the_settings_are_open(tab: Tab, client: Client) -> None:
    if not client.get("/api/engines").json()["engines"]:
        client.load()
    reasons = ["for other weights", "for other weights; 43.0% were accepted"]

    def answer(route: Route) -> None:
        found = route.fetch()
        told = found.json()
        setting = {"name": "drafter", "requested": "/d", "effective": "loaded", "reason": reasons[0]}
        told["engines"][0]["effective_settings"] = [setting]
        route.fulfill(response=found, json=told)

    page = tab.page
    page.route("**/api/engines", answer)
    tab.go("/models")
    card = page.locator(f"[data-model={MODEL}]")
    card.locator(".pz-engine-facts summary").first.click()
    expect(card.locator(".pz-reason")).to_have_text("Reason: for other weights", timeout=WAIT_MS)
    reasons.pop(0)
    training = client.post(f"/api/models/{OTHER}/train-drafter", json={"output_id": "another"})  # so that it fetches
    started = training.json()["job_id"]
    expect(card.locator(".pz-reason")).to_have_text(f"Reason: {reasons[0]}", timeout=WAIT_MS)
    expect(card.locator(".pz-reason")).to_be_visible()
    client.post(f"/api/jobs/{started}/cancel")
    client.until(lambda: client.get(f"/api/jobs/{started}").json()["finished_at"])
    assert tab.problems == []


def test_a_busy_engine_names_its_blockers_and_the_receipt_tells_what_came_back(tab: Tab, client: Client) -> None:
    page = tab.go("/models")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "SLOW ENDLESS"}], "max_tokens": 400}
    asking = threading.Thread(target=lambda: client.post("/v1/chat/completions", json=body))
    asking.start()
    run = engine(client)["id"]
    blocker = client.until(lambda: client.get(f"/api/engines/{run}/now").json()["blockers"])[0]
    page.locator(f"[data-model={MODEL}]").get_by_text("Unload", exact=True).click()
    expect(page.locator("dialog tbody tr")).to_contain_text(blocker["id"][:12], timeout=WAIT_MS)
    page.locator("dialog").get_by_text("End them now").click()
    receipt = page.locator(".pz-receipt-line").first
    expect(receipt).to_contain_text(f"{MODEL} unloaded by hand: freed", timeout=WAIT_MS)
    expect(receipt).to_contain_text("Requests cut short: 1.")
    asking.join(10)
    event = next(e for e in client.get("/api/events").json()["events"] if e["kind"] == "unload")
    expect(receipt).to_contain_text(f"in {event['data']['seconds']:.1f} s")
    assert tab.problems == []


def test_a_training_shows_its_curve_survives_a_reload_and_is_cancelled(tab: Tab, client: Client) -> None:
    page = tab.go("/models")
    page.locator(f"[data-model={OTHER}]").get_by_text("Train drafter").click()
    page.locator("dialog").get_by_label("Tokens to learn from").fill("1000")
    page.locator("dialog .pz-primary").click()
    card = page.locator("[data-kind='train-drafter']").first
    expect(card.locator(".pz-curve-now")).to_contain_text("Now 20 %", timeout=WAIT_MS)
    page.reload()
    expect(card.locator(".pz-curve-now")).to_contain_text("Now 20 %", timeout=WAIT_MS)
    expect(card.locator("svg")).to_have_attribute("aria-label", re.compile("after 2 measurements"))
    card.locator("summary").first.click()
    expect(card.locator("tbody td").nth(3)).to_have_text("20 %")
    card.get_by_role("button", name="Cancel").click()
    expect(card.locator(".pz-job-chip")).to_have_text("cancelled", timeout=WAIT_MS)
    assert tab.problems == []


def test_a_failed_load_offers_a_way_out_and_a_benchmark_is_read(tab: Tab, client: Client) -> None:
    page = tab.go("/models")
    body = {"options": {"memory_limit_bytes": 1000}}
    assert client.job(client.post(f"/api/models/{OTHER}/load", json=body))["state"] == "failed"
    card = page.locator(f"[data-model={OTHER}] .pz-failed-load")
    expect(card).to_contain_text("It does not fit into memory", timeout=WAIT_MS)
    expect(card).to_contain_text("Memory after clean-up")
    card.get_by_text("Without the memory limit").click()
    expect(page.locator(f"[data-model={OTHER}]")).to_have_attribute("data-state", "loaded", timeout=WAIT_MS)
    page.locator(f"[data-model={OTHER}]").get_by_text("Benchmark").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Prompt (tokens)").fill("16")
    dialog.get_by_label("Answer (tokens)").fill("24")
    dialog.locator(".pz-primary").click()
    row = page.locator("[data-kind=benchmark] tbody tr").first
    expect(row).to_contain_text("Writing", timeout=WAIT_MS)
    result = client.get("/api/jobs?kind=benchmark").json()["jobs"][0]["result"]
    median = result["rows"][0]["median"]
    expect(row.locator("strong")).to_have_text(f"{median:,.0f} tok/s" if median >= 100 else f"{median:,.1f} tok/s")
    assert tab.problems == []
