"""Opening the KV map in a test: on a page of the dashboard or a blank one, with a stand-in for the monitor's tab."""

from __future__ import annotations

from playwright.sync_api import Page

MOUNT = """async (engine) => {
  const { mount } = await import("/assets/js/kv_map.js");
  const place = document.querySelector(".pz-pane") ?? document.querySelector("main");
  place.replaceChildren();
  place.classList.add("pz");
  window.kvEngine = engine;
  const listeners = [];
  window.kvMap = mount(place, {
    engine: () => window.kvEngine,
    range: () => ({ since: 0, until: 0, live: true }),
    onWindow: (listener) => {
      listeners.push(listener);
      return () => {};
    },
  });
}"""


def mount_map(page: Page, engine: str | None) -> None:
    """The pane stands on the page, for this engine."""
    page.evaluate(MOUNT, engine)
