// The playground: a tab for each kind of trial, each a module of its own. Owns the tabs and the address; knows nothing
// of what a tab does. Invariant: a tab that was opened stays, hidden, so that its answer goes on while one looks elsewhere.

import { fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { reveal } from "./tabs.js";

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
  const buttons = new Map(names.map((name) => [name, tabButton(name, () => open(name, true))]));
  const stage = h("div", { class: "pz-play-stage" });
  const list = h(
    "div",
    { class: "pz-tabs", role: "tablist", "aria-label": t("nav_playground"), onkeydown: move },
    ...buttons.values(),
  );
  fill(
    element,
    h(
      "div",
      { class: "pz-page-head" },
      h("h1", {}, t("nav_playground")),
      h("p", { class: "pz-sentence" }, t("play_intro")),
    ),
    list,
    stage,
  );

  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = { Home: 0, End: names.length - 1 }[event.key];
    if (step === undefined && to === undefined) return;
    event.preventDefault();
    const at = names.indexOf(document.activeElement?.dataset.tab);
    const next = names[to ?? (at + step + names.length) % names.length];
    buttons.get(next).focus();
    open(next, true);
  }

  function open(name, byHand) {
    if (byHand) history.replaceState(null, "", `?tab=${name}`);
    if (!panels.has(name)) panels.set(name, panel(name, stage));
    for (const [other, one] of panels) one.hidden = other !== name;
    for (const [other, one] of buttons) {
      const chosen = other === name;
      one.setAttribute("aria-selected", String(chosen));
      one.tabIndex = chosen ? 0 : -1;
      if (chosen) reveal(one);
    }
  }

  const asked = () => {
    const name = new URLSearchParams(location.search).get("tab");
    return name in TABS ? name : FIRST;
  };
  addEventListener("popstate", () => open(asked(), false));
  addEventListener("pizarra:playground", ({ detail }) => open(detail.tab, true));
  open(asked(), false);
}

function tabButton(name, onclick) {
  return h(
    "button",
    { type: "button", class: "pz-tab", role: "tab", id: `pz-tab-${name}`, "data-tab": name, onclick },
    t(`play_tab_${name}`),
  );
}

function panel(name, stage) {
  const inner = h("div", { class: "pz-play-panel", role: "tabpanel", "aria-labelledby": `pz-tab-${name}` });
  stage.append(inner);
  TABS[name]()
    .then((module) => module.mount(inner))
    .catch((error) => {
      console.error(error);
      fill(inner, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, t("play_tab_failed"))));
    });
  return inner;
}
