"""The monitor and the overview over a real server with fake engines: what is drawn is what the API says."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000
GIB = 2**30
AT = r"(?:\w+ \d+, \d{4}, )?[\d:]+"  # with its day, where that is not today: at midnight a gap begins yesterday

pytestmark = pytest.mark.timeout(300)

# Of each card's plot: its lines by name, as [time, value as drawn or hovered] where there is a value.
DRAWN = """(name) => {
  const plot = document.querySelector(`[data-card='${name}'] .js-plotly-plot`);
  return Object.fromEntries(plot.data.filter((trace) => trace.customdata && trace.yaxis !== "y2").map((trace) => [
    trace.name,
    trace.x.map((x, i) => [x.valueOf() / 1000, [trace.customdata[i]].flat()[0]]).filter(([, value]) => value !== null),
  ]));
}"""

# card -> {line's name: (column, what the unit makes of it)}
CARDS: dict[str, dict[str, tuple[str, float]]] = {
    "tokens": {"written": ("generation_tokens_per_s", 1), "prompt read": ("prompt_tokens_per_s", 1)},
    "kv": {"used": ("kv_blocks_used", 1), "cached": ("kv_blocks_cached", 1), "pool": ("kv_blocks_total", 1)},
    "memory": {
        "this app": ("app_process_bytes", GIB),
        "engines": ("engine_process_bytes", GIB),
        "total": ("host_memory_total_bytes", GIB),
    },
    "requests": {"running": ("num_requests_running", 1), "waiting": ("num_requests_waiting", 1)},
    "cpu": {"all cores": ("host_cpu_percent", 1)},
    "ttft": {"p50": ("ttft_p50_s", 0.001), "p95": ("ttft_p95_s", 0.001), "p99": ("ttft_p99_s", 0.001)},
    "itl": {"p50": ("itl_p50_s", 0.001), "p95": ("itl_p95_s", 0.001), "p99": ("itl_p99_s", 0.001)},
    "queue": {"running": ("num_requests_running", 1), "waiting": ("num_requests_waiting", 1)},
    "throughput": {"written": ("generation_tokens_per_s", 1), "prompt read": ("prompt_tokens_per_s", 1)},
    "disk": {"free": ("disk_free_bytes", GIB)},
    "finished": {"finished": ("requests_per_s", 1), "preempted": ("preemptions_per_s", 1)},
}
TABS = {
    "glance": ("tokens", "kv", "memory", "requests", "cpu", "ttft"),
    "latency": ("ttft", "itl", "queue", "throughput"),
    "gpu": ("cpu", "memory", "disk"),
    "memory": ("kv", "finished"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("monitor"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        for _ in range(2):
            body = {"model": MODEL, "prompt": "hello", "max_tokens": 30}
            assert client.post("/v1/completions", json=body).status_code == 200
        time.sleep(4)  # a few samples
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/"), size=(1440, 4000)) as opened:  # all plots are in sight
        yield opened


def wait_drawn(page: Page, card: str) -> None:
    drawn = f"document.querySelector(\"[data-card='{card}'] .js-plotly-plot\")?.data?.some((t) => t.x.length > 2)"
    page.wait_for_function(drawn, timeout=WAIT_MS)


@pytest.mark.parametrize("name", TABS)
def test_every_line_is_what_the_api_says(tab: Tab, client: Client, name: str) -> None:
    page = tab.go(f"/monitor?tab={name}&range=5m&paused={time.time():.0f}")
    for card in TABS[name]:
        wait_drawn(page, card)
        drawn = page.evaluate(DRAWN, card)
        for line, (column, size) in CARDS[card].items():
            points = dict(drawn[line])
            said = client.get("/api/samples", params={"since": time.time() - 330, "columns": column}).json()
            truth = {t: v for t, v in zip(said["t"], said["columns"][column], strict=True) if v is not None}
            assert points or column.startswith(("ttft", "itl")), (card, line)
            assert points == {t: pytest.approx(truth[t] / size, rel=1e-6, abs=1e-12) for t in points}, (card, line)
    assert tab.problems == []


def test_memory_by_part_adds_up_and_is_told_in_a_table(tab: Tab, client: Client) -> None:
    page = tab.go("/monitor?tab=memory&range=5m")
    wait_drawn(page, "memory_parts")
    page.click(".pz-pause")
    names = page.eval_on_selector_all(
        "[data-table=memory] tr[data-part]", "rows => rows.map((row) => row.dataset.part)"
    )
    assert names == [
        *("weights", "draft_weights", "kv_used", "kv_cached", "kv_free", "workspace"),
        *("runtime", "unattributed", "app", "other", "free"),
    ]
    newest = page.evaluate(
        """async () => {
          const { MEMORY_COLUMNS, partsAt } = await import("/assets/js/memory_parts.js");
          const { SampleWindow } = await import("/assets/js/series.js");
          const found = await (await fetch(`/api/samples?columns=${MEMORY_COLUMNS}`)).json();
          const window = new SampleWindow(900, found);
          const at = window.t.findLastIndex((_, i) => window.get("weights_bytes")[i] !== null);
          const column = (name) => window.get(name)[at];
          return { ...partsAt(window, at, "host", "cpu"), process: column("engine_process_bytes"),
                   said: [column("weights_bytes"), column("kv_bytes"), column("host_memory_total_bytes")] };
        }"""
    )
    parts = newest["parts"]
    assert newest["said"][:2] == [10, 20]  # as the fake engine states
    assert parts["weights"] + parts["kv_used"] + parts["kv_cached"] + parts["kv_free"] == pytest.approx(30)
    assert parts["unattributed"] == pytest.approx(newest["process"] - 30)
    assert newest["sum"] + newest["difference"] == pytest.approx(newest["said"][2])
    assert abs(newest["difference"]) < 0.02 * newest["said"][2]
    alarm = page.locator("[data-part=unattributed].pz-bad")  # it holds far more than it states
    expect(alarm).to_contain_text("More than 5 %")
    assert tab.problems == []


def test_an_address_restores_tab_range_engine_and_pause(tab: Tab, client: Client) -> None:
    engine = client.get("/api/engines").json()["engines"][0]["id"]
    paused = int(time.time())
    page = tab.go(f"/monitor?tab=latency&range=1h&engine={engine}&paused={paused}")
    wait_drawn(page, "throughput")
    expect(page.locator("[role=tab][aria-selected=true]")).to_have_attribute("data-tab", "latency")
    expect(page.locator("[data-range='1h']")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".pz-pause")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".pz-engine-choice")).to_have_value(engine)
    shown = "document.querySelector(\"[data-card='throughput'] .js-plotly-plot\")._fullLayout.xaxis.range"
    ends = page.evaluate(f"new Date({shown}[1]).valueOf() / 1000")
    assert ends == pytest.approx(paused, abs=1)
    page.click("[data-tab=gpu]")
    page.click("[data-range='24h']")
    assert re.search(rf"tab=gpu&range=24h&engine={engine}$", page.url)
    page.keyboard.press("Tab")
    page.locator("[data-tab=gpu]").focus()
    page.keyboard.press("Home")
    expect(page.locator("[data-tab=glance]")).to_have_attribute("aria-selected", "true")
    page.click("[data-range=custom]")
    page.fill(".pz-custom-range input >> nth=0", "2026-01-01T10:00")
    page.fill(".pz-custom-range input >> nth=1", "2026-01-01T09:00")
    page.click(".pz-custom-range button")
    expect(page.locator(".pz-custom-range .pz-bad")).to_contain_text("start must come before")
    page.fill(".pz-custom-range input >> nth=1", "2026-01-01T11:00")
    page.click(".pz-custom-range button")
    page.wait_for_function("location.search.match(/range=\\d+-\\d+/)")
    expect(page.locator(".pz-gaps")).to_contain_text("the server was not running", timeout=WAIT_MS)
    assert tab.problems == []


def test_a_gap_says_why_and_stays_a_gap(tab: Tab) -> None:
    page = tab.go("/monitor?tab=glance&range=1h")
    wait_drawn(page, "cpu")
    expect(page.locator(".pz-gaps li").first).to_have_text(
        re.compile(rf"No samples {AT} – {AT} \(the server was not running\)"), timeout=WAIT_MS
    )
    cpu = "document.querySelector(\"[data-card='cpu'] .js-plotly-plot\")"
    assert page.evaluate(f"{cpu}.data.filter((t) => t.customdata).every((t) => t.connectgaps === false)")
    assert page.evaluate(f"{cpu}.layout.shapes.filter((s) => s.type === 'rect').length") >= 1
    expect(page.locator("[data-card=gpu] .pz-plot-off")).to_contain_text(re.compile("Not available|no NVIDIA"))


def test_a_file_holds_what_is_drawn_with_units_and_definitions(tab: Tab) -> None:
    page = tab.go("/monitor?tab=glance&range=1h")
    wait_drawn(page, "cpu")
    with page.expect_download() as downloading:
        page.click("[data-card=cpu] [data-export=csv]")
    text = Path(downloading.value.path()).read_text(encoding="utf-8")
    assert re.fullmatch(r"pizarra-cpu-[\dT-]+\.csv", downloading.value.suggested_filename)
    assert "# CPU\n# All cores together\n" in text
    assert "# Figures of: All models together\n" in text
    assert "step of 5 s" in text
    assert "# No samples" in text
    heads, *rows = csv.reader(io.StringIO("".join(line for line in io.StringIO(text) if not line.startswith("#"))))
    assert heads == ["time (UTC)", "all cores [%]", "all cores min [%]", "all cores max [%]"]
    drawn = page.evaluate(DRAWN, "cpu")["all cores"]
    written = [float(row[1]) for row in rows if row[1]]
    assert written[: len(drawn) - 2] == [pytest.approx(value) for _, value in drawn][: len(drawn) - 2]
    assert all(float(row[2]) <= float(row[3]) for row in rows if row[2])
    with page.expect_download() as downloading:
        page.click("[data-card=cpu] [data-export=png]")
    assert Path(downloading.value.path()).read_bytes().startswith(b"\x89PNG")
    page.click("[data-card=cpu] .pz-twin summary")
    expect(page.locator("[data-card=cpu] .pz-twin tbody th")).to_have_text("all cores")
    assert tab.problems == []


def test_one_moment_is_pointed_at_in_all_plots_and_events_are_marked(tab: Tab) -> None:
    page = tab.go("/monitor?tab=glance&range=5m")
    wait_drawn(page, "cpu")
    wait_drawn(page, "tokens")
    box = page.locator("[data-card=tokens] .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 30)
    expect(page.locator("[data-card=cpu] .pz-crosshair")).to_be_visible()
    expect(page.locator(".pz-crosshair:visible")).not_to_have_count(1)
    page.mouse.move(2, 2)
    expect(page.locator(".pz-crosshair:visible")).to_have_count(0)
    marks = "document.querySelector(\"[data-card='cpu'] .js-plotly-plot\").data.find((t) => t.yaxis === 'y2').text"
    assert any(text.startswith("Load: loaded tiny") for text in page.evaluate(marks))
    page.click(".pz-range-events summary")
    expect(page.locator(".pz-range-events li").first).to_contain_text("loaded tiny")
    assert tab.problems == []


def test_six_tabs_open_at_once_stay_live(client: Client, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    try:
        pages = []
        for name in ("glance", "memory", "latency", "gpu", "glance", "memory"):
            page = context.new_page()
            page.goto(f"{client.base_url}/monitor?tab={name}".replace("//monitor", "/monitor"))
            pages.append(page)
        known = "[...document.querySelectorAll('.pz-plot-now')].some((node) => /\\d/.test(node.textContent))"
        for page in pages:
            page.wait_for_function(known, timeout=WAIT_MS)
        count = """async () => {
          const { live } = await import("/assets/js/live.js");
          window.seen = 0;
          live.subscribe("samples", () => (window.seen += live.connected ? 1 : 0));
        }"""
        for page in pages:
            page.evaluate(count)
        for page in pages:
            page.wait_for_function("window.seen >= 3", timeout=WAIT_MS)
    finally:
        context.close()


def test_the_overview_tells_of_the_server_and_leads_to_requests(tab: Tab, client: Client) -> None:
    page = tab.go("/")
    system: dict[str, Any] = client.get("/api/system").json()
    facts = page.locator(".pz-server")
    expect(facts).to_contain_text("Up for", timeout=WAIT_MS)
    free = round(system["disk_free_bytes"] / GIB)
    expect(facts).to_contain_text(re.compile(rf"{str(free)[:1]}[\d.,]* GiB of"))
    expect(facts.locator(".pz-runs li").first).to_have_text("1 started, 0 ended, 0 of them failed")
    facts.locator("summary").click()
    expect(facts).to_contain_text(f"python {system['versions']['python']}")
    request = client.get("/api/requests?limit=1").json()["requests"][0]["id"]
    expect(page.locator(".pz-pane .pz-table a").first).to_have_attribute("href", f"/requests?id={request}")
    assert tab.problems == []
