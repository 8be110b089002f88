// The settings page: its tabs. Each is a module with `mount(panel) -> {destroy()}`, and an address (`?tab=alerts`).

import { fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { reveal } from "./tabs.js";

const TABS = ["appearance", "alerts", "retention", "about"];

export function mount(element) {
  const panel = h("div", { class: "pz-settings-panel", id: "pz-settings-panel" });
  // the whole path: Gradio sets a base for addresses, so that `?tab=` alone would lead to the front page
  const address = (name) => `${location.pathname}?tab=${name}`;
  const links = TABS.map((name) =>
    h("a", { class: "pz-tab", href: address(name), dataset: { tab: name } }, t(`set_tab_${name}`)),
  );
  const tabs = h("nav", { class: "pz-tabs", "aria-label": t("set_tabs") }, links);
  let shown = null;
  let asked = 0;
  async function show() {
    const wanted = new URLSearchParams(location.search).get("tab");
    const name = TABS.includes(wanted) ? wanted : TABS[0];
    for (const link of links) {
      if (link.dataset.tab === name) {
        link.setAttribute("aria-current", "page");
        reveal(link);
      } else link.removeAttribute("aria-current");
    }
    const turn = ++asked;
    const module = await import(`./settings_${name}.js`);
    if (turn !== asked) return;
    shown?.destroy();
    panel.replaceChildren();
    shown = module.mount(panel);
  }
  for (const link of links) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.pushState(null, "", link.href);
      show();
    });
  }
  addEventListener("popstate", show);
  const head = h(
    "div",
    { class: "pz-page-head" },
    h("h1", {}, t("nav_settings")),
    h("p", { class: "pz-sentence" }, t("set_intro")),
  );
  fill(element, head, tabs, panel);
  show();
}
