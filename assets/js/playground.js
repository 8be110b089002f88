// The playground: a tab for each kind of trial, each a module of its own. Owns the tabs and the address; knows nothing
// of what a tab does. Invariant: a tab that was opened stays, hidden, so that its answer goes on while one looks elsewhere.

import { fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { createTabs } from "./tabs.js";

const TABS = {
  completion: () => import("./play_completion.js"),
  chat: () => import("./play_chat.js"),
  chalkboard: () => import("./chalkboard.js"),
  race: () => import("./race.js"),
  tokenizer: () => import("./play_tokenizer.js"),
  template: () => import("./play_template.js"),
  structured: () => import("./play_structured.js"),
};
const FIRST = "completion";

export function mount(element) {
  const names = Object.keys(TABS);
  const panels = new Map();
  const tabs = createTabs(
    names.map((name) => [name, t(`play_tab_${name}`)]),
    t("nav_playground"),
    (name) => open(name, true),
  );
  fill(
    element,
    h(
      "div",
      { class: "pz-page-head" },
      h("h1", {}, t("nav_playground")),
      h("p", { class: "pz-sentence" }, t("play_intro")),
    ),
    tabs.element,
    tabs.panel,
  );

  function open(name, byHand) {
    // the whole path: Gradio sets a base for addresses, so that `?tab=` alone would lead to the front page
    if (byHand) history.replaceState(null, "", `${location.pathname}?tab=${name}`);
    if (!panels.has(name)) panels.set(name, panel(name, tabs.panel));
    for (const [other, one] of panels) one.hidden = other !== name;
    tabs.show(name);
  }

  const asked = () => {
    const name = new URLSearchParams(location.search).get("tab");
    return name in TABS ? name : FIRST;
  };
  addEventListener("popstate", () => open(asked(), false));
  addEventListener("pizarra:playground", ({ detail }) => open(detail.tab, true));
  open(asked(), false);
}

function panel(name, stage) {
  const inner = h("div", { class: "pz-play-panel" });
  stage.append(inner);
  TABS[name]()
    .then((module) => module.mount(inner))
    .catch((error) => {
      console.error(error);
      fill(inner, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, t("play_tab_failed"))));
    });
  return inner;
}
