"""A pane on a page of the real site, without the page that usually holds it: what is tested is the pane."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.browser import Tab

MOUNT = """async (name) => {
  const host = document.createElement("div");
  host.className = "pz pz-pane";
  host.id = "probe";
  (document.querySelector("main") ?? document.body).prepend(host);
  window.probe = (await import(`/assets/js/${name}.js`)).mount(host);
}"""


def mount(tab: Tab, module: str, query: str = "") -> Page:
    """The page with `assets/js/<module>.js` in #probe."""
    page = tab.go(f"/models{query}")
    page.evaluate(MOUNT, module)
    return page
