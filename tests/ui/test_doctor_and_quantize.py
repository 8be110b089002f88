"""The models page's Check and Quantise, over a real server whose quantiser is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.app.test_quantize_job import job_command
from tests.browser import Tab, open_tab
from tests.engine.packed_headers import packed_checkpoint
from ui.site import mount_site

WAIT_MS = 60_000
PACKED, BROKEN = "packed", "broken"
MADE = f"{MODEL}-gptq-g64"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("doctor"), MODEL, BROKEN)
    packed_checkpoint(home / "models" / PACKED, "v1", checkpoint_format="gptq_v2", plain="down_proj")
    (home / "models" / BROKEN / "model.safetensors").unlink()
    with serving(make_settings(home, jobs_command=" ".join(job_command())), mount_site) as client:
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def test_check_shows_what_a_checkpoint_is(tab: Tab) -> None:
    page = tab.go("/models")
    page.click(f"[data-model={PACKED}] button:has-text('Check')")
    page.wait_for_selector("dialog .pz-findings", timeout=WAIT_MS)
    expect(page.locator("dialog .pz-finding").first).to_have_text(
        "This checkpoint can be served here.", timeout=WAIT_MS
    )
    expect(page.locator("dialog dd").first).to_have_text("safetensors · GPTQ · v1")
    expect(page.locator("dialog tbody tr")).to_have_text(
        ["embedding011 F1640.0 KiB", "attention808 GPTQ_V113.5 KiB", "MLP424 GPTQ_V1, 2 F1650.0 KiB"]
    )
    expect(page.locator("dialog .pz-findings").first).to_contain_text("GPTQ version: gptq_v2 → gptq")
    expect(page.locator("dialog details")).to_contain_text("Draft models on this disk: 0 of 2 match")
    assert tab.problems == []


def test_check_of_a_broken_model_says_why(tab: Tab) -> None:
    page = tab.go("/models")
    page.click(f"[data-model={BROKEN}] button:has-text('Check')")
    expect(page.locator("dialog .pz-problem")).to_contain_text("neither model.safetensors nor", timeout=WAIT_MS)
    expect(page.locator("dialog .pz-findings")).to_contain_text("Tokenizer read: 320 tokens")
    assert page.locator("dialog table").count() == 0
    assert tab.problems == []


def test_quantise_offers_groups_that_divide_and_makes_the_model(tab: Tab) -> None:
    page = tab.go("/models")
    page.click(f"[data-model={MODEL}] button:has-text('Quantise')")
    format_field, group = page.locator("dialog select").nth(0), page.locator("dialog select").nth(1)
    expect(group).to_have_value("64", timeout=WAIT_MS)
    expect(group.locator("option:disabled")).to_have_text(["128"])
    order = page.locator("dialog .pz-check")
    expect(order).to_be_hidden()
    format_field.select_option("gptq")
    expect(order).to_be_visible()
    page.fill("dialog textarea", "Of wind and tide.")
    page.click("dialog .pz-primary")
    expect(page.locator("dialog")).to_have_count(0, timeout=WAIT_MS)
    expect(page.locator(f"[data-model={MADE}]")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator(".pz-job").first).to_contain_text(f"made {MADE}", timeout=WAIT_MS)
    page.click(f"[data-model={MODEL}] button:has-text('Quantise')")
    expect(group).to_have_value("64", timeout=WAIT_MS)
    format_field.select_option("gptq")
    page.click("dialog .pz-primary")
    expect(page.locator("dialog .pz-problem")).to_contain_text(f"there is a model {MADE} already", timeout=WAIT_MS)
    assert all("409" in problem for problem in tab.problems), "the refusal is all that the console tells of"
