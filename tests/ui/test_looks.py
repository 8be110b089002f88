"""What every page owes to eyes and fingers, at 390 px in both themes, read from what the browser computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import open_tab
from ui.site import mount_site

SIZE = (390, 844)
PAGES = ("/", "/playground?tab=structured", "/models", "/monitor?tab=gpu", "/requests", "/settings?tab=about")
SETTLE_MS = 1200
STOPS = 40  # of the Tab key: past the bars, into the page

# Text against what is behind it (AA: 4.5, large text 3), targets of 24 px, headings that skip no level.
LOOK = """() => {
  const faults = new Set();
  const brush = Object.assign(document.createElement("canvas"), {width: 1, height: 1})
    .getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const shown = (node) => node.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const parents = (node) => { const all = []; for (let n = node; n; n = n.parentElement) all.push(n); return all; };
  const behind = (node) => parents(node).reverse()
    .reduce((under, n) => over(rgba(getComputedStyle(n).backgroundColor), under), [255, 255, 255, 1]);
  const painted = (node) => parents(node).some((n) => getComputedStyle(n).backgroundImage.includes("gradient"));
  const words = document.createTreeWalker(document.querySelector(".pz-pane"), NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const node = words.currentNode.parentElement;
    const text = words.currentNode.data.trim();
    if (!text || !shown(node) || node.closest(":disabled, option, svg") || painted(node)) continue;
    const style = getComputedStyle(node);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.7 && style.fontWeight >= 700);
    const found = ratio(over(rgba(style.color), behind(node)), behind(node));
    if (found < (large ? 3 : 4.5)) faults.add(`contrast ${found.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  for (const node of document.querySelectorAll(".pz :is(button, a[href], input, select, textarea, summary)")) {
    if (!shown(node) || getComputedStyle(node).display === "inline") continue;
    const box = (node.matches("[type=checkbox]") && node.closest("label") || node).getBoundingClientRect();
    if (box.width && (box.width < 23.5 || box.height < 23.5))
      faults.add(`${box.width} x ${box.height}: ${node.className} ${node.textContent.slice(0, 30)}`);
  }
  let level = 0;
  for (const node of [...document.querySelectorAll(".pz-pane :is(h1, h2, h3, h4)")].filter(shown)) {
    if (Number(node.tagName[1]) > level + 1) faults.add(`h${level}, then ${node.tagName}: ${node.textContent}`);
    level = Number(node.tagName[1]);
  }
  return [...faults];
}"""

# The middle of what has the focus lies under one of the bars that stay in place.
COVERED = """() => {
  const node = document.activeElement;
  const box = node.getBoundingClientRect();
  const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return top?.closest(".pz-rail, .pz-head") && !node.closest(".pz-rail, .pz-head, .pz-skip") ? node.textContent : null;
}"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("site"), "first")), mount_site) as client:
        assert client.load("first")["state"] == "succeeded"
        yield client


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_text_targets_and_headings(client: Client, browser: Browser, theme: str) -> None:
    faults = {}
    with open_tab(browser, str(client.base_url).rstrip("/"), size=SIZE, theme=theme, locale="es-ES") as tab:
        for path in PAGES:
            page = tab.go(path)
            page.wait_for_timeout(SETTLE_MS)
            faults[path] = [*page.evaluate(LOOK), *hidden_tabs(page)]
        assert not any(faults.values()), faults
        assert tab.problems == []


def hidden_tabs(page: Page) -> list[str]:
    """Chosen tabs that are not wholly in the window."""
    chosen = page.locator('.pz-tab:is([aria-selected="true"], [aria-current="page"])').all()
    boxes = [(tab.inner_text(), tab.bounding_box()) for tab in chosen]
    return [name for name, box in boxes if box is None or box["x"] < 0 or box["x"] + box["width"] > SIZE[0] + 1]


def test_the_focus_is_never_under_a_bar(client: Client, browser: Browser) -> None:
    with open_tab(browser, str(client.base_url).rstrip("/"), size=SIZE) as tab:
        page = tab.go("/settings?tab=alerts")
        page.wait_for_timeout(SETTLE_MS)
        covered = []
        for _ in range(STOPS):
            page.keyboard.press("Tab")
            covered.append(page.evaluate(COVERED))
        assert [name for name in covered if name is not None] == []
