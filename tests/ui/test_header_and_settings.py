"""The header, the settings page and the keyboard in Chromium, with fake engines."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000
MODELS = ("first", "second")
CONTROLS = (".pz-bell", ".pz-stop-all", ".pz-head-unload button", ".pz-theme-toggle")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("site"), *MODELS)), mount_site) as client:
        assert client.load("first")["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def ask(client: Client, prompt: str) -> threading.Thread:
    """A request that another program makes."""
    body = {"model": "first", "prompt": prompt, "max_tokens": 60}
    url = f"{client.base_url}/v1/completions"
    thread = threading.Thread(target=lambda: httpx.post(url, json=body, timeout=60, trust_env=False))
    thread.start()
    return thread


def engine(client: Client, model: str) -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in client.get("/api/engines").json()["engines"] if e["model_id"] == model)
    return found


def figure(page: Page, name: str) -> Any:
    return page.locator(f".pz-head [data-figure={name}]")


def test_the_header_shows_what_the_api_says(client: Client, tab: Tab) -> None:
    ask(client, "DRAFT hello").join()
    page = tab.go("/models")
    expect(page.locator(".pz-head-names")).to_have_text("first")
    expect(page.locator(".pz-head-details")).to_have_text("F32 · suffix", timeout=WAIT_MS)
    ttft = client.get("/api/requests?limit=1").json()["requests"][0]["ttft_s"]
    expect(figure(page, "ttft")).to_have_text(f"{1000 * ttft:.0f} ms", timeout=WAIT_MS)
    expect(page.locator(".pz-head-ttft")).to_have_attribute("title", re.compile("last 5 minutes"))
    expect(figure(page, "speculation")).to_have_attribute("href", "/monitor?tab=speculation")
    expect(figure(page, "memory")).to_have_text(re.compile(r"[\d.]+ / [\d.]+ GiB"))
    assert "weights" in (page.locator(".pz-head-bar").get_attribute("aria-label") or "")
    expect(page.locator(".pz-age")).to_have_text(re.compile(r"data \d s old"))
    assert tab.problems == []


def test_stop_all_asks_once_and_ends_everything(client: Client, tab: Tab) -> None:
    page = tab.go("/models")
    expect(page.locator(".pz-stop-all")).to_be_disabled()
    asked = ask(client, "HANG")
    expect(page.locator(".pz-head .pz-chip")).to_have_attribute("data-state", "busy", timeout=WAIT_MS)
    page.click(".pz-stop-all")
    expect(page.locator("dialog p")).to_have_text(re.compile("1 running or waiting requests of first"))
    page.click("dialog .pz-danger")
    expect(page.locator(".pz-toast")).to_contain_text("1 requests stopped", timeout=WAIT_MS)
    asked.join(20)
    assert not asked.is_alive()
    assert client.get("/api/requests?limit=1").json()["requests"][0]["finish_reason"] == "abort"
    assert tab.problems == []


def test_a_lost_feed_greys_the_header_with_its_age_and_comes_back(client: Client, browser: Browser) -> None:
    with open_tab(browser, str(client.base_url).rstrip("/")) as tab:
        cut = {"now": False, "sockets": []}

        def route(socket: Any) -> None:
            if cut["now"]:
                socket.close()
                return
            socket.connect_to_server()
            cut["sockets"].append(socket)  # type: ignore[attr-defined]

        tab.page.route_web_socket(re.compile("/api/live"), route)
        page = tab.go("/models")
        head = page.locator(".pz-head")
        expect(page.locator(".pz-age")).to_have_text(re.compile(r"data \d s old"), timeout=WAIT_MS)
        expect(head).not_to_have_class(re.compile("pz-stale"))
        cut["now"] = True
        for socket in cut["sockets"]:  # type: ignore[attr-defined]
            socket.close()
        expect(head).to_have_class(re.compile("pz-stale"), timeout=15_000)
        expect(page.locator(".pz-age")).to_have_text(re.compile(r"stale [4-9] s"))
        cut["now"] = False
        expect(head).not_to_have_class(re.compile("pz-stale"), timeout=WAIT_MS)
        expect(page.locator(".pz-age")).to_have_text(re.compile(r"data \d s old"))


def test_of_two_engines_one_is_chosen_and_a_killed_one_is_told_at_once(client: Client, tab: Tab) -> None:
    assert client.load("second")["state"] == "succeeded"
    page = tab.go("/models")
    select = page.locator(".pz-engine-select")
    expect(select).to_have_value("first", timeout=WAIT_MS)
    select.select_option("second")
    expect(page.locator(".pz-head-unload button")).to_have_attribute("title", "Unload: second")
    chosen = "async () => (await import('/assets/js/chosen_engine.js')).chosenEngine()"
    assert page.evaluate(chosen) == engine(client, "second")["id"]
    page.reload()
    expect(select).to_have_value("second", timeout=WAIT_MS)
    os.kill(engine(client, "second")["pid"], signal.SIGKILL)
    expect(page.locator(".pz-head .pz-chip")).to_have_attribute("data-state", "failed", timeout=3_000)
    expect(page.locator(".pz-toast")).to_contain_text("ended by SIGKILL")
    assert page.evaluate(chosen) is None
    expect(page.locator(".pz-head-unload button")).to_have_count(0)
    expect(page.locator(".pz-bell .pz-badge")).to_have_text("1", timeout=WAIT_MS)
    page.click(".pz-bell")
    item = page.locator(".pz-alert[data-state=firing]")
    expect(item).to_contain_text("Engine down · second", timeout=WAIT_MS)
    item.get_by_role("button").click()
    expect(page.locator(".pz-alert .pz-hint").last).to_have_text("seen", timeout=WAIT_MS)
    assert client.get("/api/alerts").json()["unacknowledged"] == 0
    page.keyboard.press("Escape")
    select.select_option("first")
    expect(page.locator(".pz-head .pz-chip")).to_have_attribute("data-state", "ready")
    assert tab.problems == []


def test_every_control_is_there_at_390_pixels(client: Client, browser: Browser) -> None:
    url = str(client.base_url).rstrip("/")
    with open_tab(browser, url, size=(390, 844), theme="light", locale="es-ES") as tab:
        page = tab.go("/settings?tab=alerts")
        page.wait_for_selector(".pz-rule")
        boxes = page.evaluate(
            """(selectors) => selectors.map((s) => {
              const box = document.querySelector(s).getBoundingClientRect();
              return box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.bottom <= 150;
            })""",
            [*CONTROLS, ".pz-chip", ".pz-age", "[data-figure=memory]", "[data-figure=tokens]", "[data-figure=ttft]"],
        )
        assert all(boxes), boxes
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        expect(page.locator(".pz-rail-link").last).to_be_visible()
        assert tab.problems == []


def test_a_rule_is_made_seen_firing_changed_and_deleted(client: Client, tab: Tab) -> None:
    page = tab.go("/settings?tab=alerts")
    rules = page.locator(".pz-rule")
    expect(rules).to_have_count(6, timeout=WAIT_MS)
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("What is measured").select_option("host_memory_percent")
    page.get_by_label("Threshold").fill("1")
    page.get_by_label("For at least").fill("0")
    page.get_by_label("Webhook").fill("http://127.0.0.1:9/<b>hook</b>")
    page.click("dialog .pz-primary")
    expect(rules).to_have_count(7, timeout=WAIT_MS)
    added = rules.filter(has_text="Memory of this machine")
    expect(added).to_contain_text("above 1 %")
    expect(added).to_contain_text("calls 127.0.0.1:9")
    expect(added.locator(".pz-standing[data-state=firing]")).to_contain_text("this machine", timeout=WAIT_MS)
    alerts = page.locator(".pz-alert").filter(has_text="Memory of this machine")
    expect(alerts).to_have_attribute("data-state", "firing", timeout=WAIT_MS)
    added.get_by_role("button", name="Test the webhook").click()
    expect(page.locator(".pz-toast").last).to_contain_text("The webhook was not reached", timeout=WAIT_MS)

    added.get_by_role("button", name="Edit").click()
    rule_id = added.get_attribute("data-rule")
    assert client.patch(f"/api/alert-rules/{rule_id}", json={"version": 1, "threshold": 2.0}).status_code == 200
    page.get_by_label("Threshold").fill("55")
    page.click("dialog .pz-primary")
    expect(page.locator("dialog .pz-problem")).to_contain_text("changed or deleted elsewhere", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    expect(added).to_contain_text("above 2 %", timeout=WAIT_MS)
    added.get_by_role("button", name="Delete").click()
    page.click("dialog .pz-danger")
    expect(rules).to_have_count(6, timeout=WAIT_MS)
    expect(alerts.last).to_have_attribute("data-state", "resolved", timeout=WAIT_MS)  # under the first threshold
    expect(alerts.first).to_have_attribute("data-state", "resolved", timeout=WAIT_MS)
    client.post("/api/alerts/acknowledge")
    tab.problems = [each for each in tab.problems if "409" not in each]  # Chromium writes a refused call down
    assert tab.problems == []


def test_retention_is_saved_read_again_and_not_overwritten_by_a_stale_tab(client: Client, tab: Tab) -> None:
    page = tab.go("/settings?tab=retention")
    field, save = page.locator("#pz-retention_raw_hours"), page.get_by_role("button", name="Save")
    expect(field).to_have_value("24", timeout=WAIT_MS)
    expect(save).to_be_disabled()
    field.fill("1000")
    expect(save).to_be_disabled()
    field.fill("48")
    save.click()
    expect(page.locator(".pz-set-saved")).to_have_text("saved", timeout=WAIT_MS)
    assert client.get("/api/settings").json()["settings"] == {"retention_raw_hours": 48}
    page.reload()
    expect(field).to_have_value("48", timeout=WAIT_MS)
    size = client.get("/api/storage").json()["rows"]["events"]
    expect(page.locator("tr", has_text="events").locator("td").last).to_have_text(re.compile(r"\d+"))
    assert size > 0

    client.put("/api/settings", json={"settings": {"retention_raw_hours": 72}})  # another tab
    field.fill("12")
    page.locator("#pz-store_bodies").check()
    save.click()
    expect(page.locator(".pz-problem")).to_contain_text("Nothing was overwritten", timeout=WAIT_MS)
    expect(field).to_have_value("72")
    assert client.get("/api/settings").json()["settings"] == {"retention_raw_hours": 72}
    save.click()  # what was typed beside it is still there
    expect(page.locator(".pz-set-saved")).to_have_text("saved", timeout=WAIT_MS)
    assert client.get("/api/settings").json()["settings"]["store_bodies"] is True
    tab.problems = [each for each in tab.problems if "409" not in each]
    assert tab.problems == []


def test_theme_and_language_are_chosen_and_kept(tab: Tab) -> None:
    page = tab.go("/settings")
    page.click("[data-choice=light]")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.click("[data-choice=es]")
    expect(page.locator("h1")).to_have_text("Ajustes", timeout=WAIT_MS)
    page.reload()
    expect(page.locator("h1")).to_have_text("Ajustes", timeout=WAIT_MS)
    expect(page.locator("html")).to_have_attribute("lang", "es")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate("navigator.language") == "es", "Gradio's labels follow"
    assert tab.problems == []


def test_about_shows_this_installation_and_its_texts(client: Client, tab: Tab) -> None:
    page = tab.go("/settings")
    page.click("[data-tab=about]")
    page.reload()
    assert page.url.endswith("/settings?tab=about")
    expect(page.locator(".pz-settings-panel")).to_contain_text(client.get("/api/about").json()["python"])
    page.get_by_role("link", name="LICENSE").click()
    expect(page.locator("dialog pre")).to_contain_text("Apache License", timeout=WAIT_MS)
    assert tab.problems == []


def test_the_keyboard_helps_goes_and_keeps_out_of_fields(tab: Tab) -> None:
    page = tab.go("/models")
    page.keyboard.press("?")
    expect(page.locator("dialog .pz-keys")).to_be_visible()
    shown = page.locator("dialog kbd").all_inner_texts()
    assert {"g", "o", "/", "n", "?", "Ctrl", "Enter", "Esc", "[", "]"} <= set(shown)
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    assert page.url.endswith("/models"), "keys are off while a dialog is open"
    page.keyboard.press("/")
    expect(page.locator(".pz-model-filter")).to_be_focused()
    page.keyboard.type("gs?")
    expect(page.locator(".pz-model-filter")).to_have_value("gs?")
    page.locator("h1").click()
    page.evaluate("document.addEventListener('pz:branch', (event) => (window.step = event.detail.step))")
    page.keyboard.press("]")
    assert page.evaluate("window.step") == 1
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/settings")
    page.wait_for_selector(".pz-settings-panel .pz-card")
    page.keyboard.press("Tab")
    expect(page.locator(".pz-skip")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "pz-main"
    assert tab.problems == []
