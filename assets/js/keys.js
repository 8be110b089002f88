// The keyboard on every page. Owns the list of keys, the help that shows it, and what works everywhere; what belongs to
// a page is dispatched as an event that the page listens to: "pz:branch" {step} for [ and ], "pz:new-chat" for n.
// Invariant: a single letter does nothing while something is being written or a dialog is open.

import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

const PAGES = {
  o: "overview",
  c: "chat",
  p: "playground",
  m: "models",
  r: "requests",
  s: "settings",
  n: "monitor",
};
const ARMED_MS = 1500;
const WRITING = "input, textarea, select, [contenteditable=true], dialog";

export function installKeys(routes) {
  let armed = 0;
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.altKey) return;
    if (event.ctrlKey || event.metaKey || event.target.closest?.(WRITING)) return;
    const second = Date.now() - armed < ARMED_MS;
    armed = event.key === "g" ? Date.now() : 0;
    if (second) {
      const path = routes.get(PAGES[event.key]);
      if (path) location.assign(path);
    } else {
      act(event, routes);
    }
  });
}

function act(event, routes) {
  if (event.key === "?") {
    event.preventDefault();
    showKeys(routes);
  } else if (event.key === "/") {
    const field = [...document.querySelectorAll("input[type=search], [data-search]")].find(isVisible);
    if (!field) return;
    event.preventDefault();
    field.focus();
  } else if (event.key === "n") {
    const isHere = document.querySelector("[data-frame]").dataset.frame === "chat";
    event.preventDefault(); // the letter is not for the field that gets the focus
    if (isHere) document.dispatchEvent(new CustomEvent("pz:new-chat"));
    else location.assign(routes.get("chat"));
  } else if (event.key === "[" || event.key === "]") {
    document.dispatchEvent(new CustomEvent("pz:branch", { detail: { step: event.key === "]" ? 1 : -1 } }));
  }
}

const isVisible = (node) => node.offsetParent !== null;

/** All keys in a dialog. */
export function showKeys(routes) {
  if (document.querySelector(".pz-keys")) return;
  const pages = Object.entries(PAGES).filter(([, page]) => routes.has(page));
  const groups = [
    [t("keys_pages"), pages.map(([key, page]) => [["g", key], t(`nav_${page}`)])],
    [
      t("keys_everywhere"),
      [
        [["/"], t("keys_search")],
        [["n"], t("keys_new_chat")],
        [["?"], t("keys_help")],
      ],
    ],
    [
      t("keys_writing"),
      [
        [["Ctrl", "Enter"], t("keys_send")],
        [["Esc"], t("keys_stop")],
        [["["], t("keys_branch_before")],
        [["]"], t("keys_branch_after")],
      ],
    ],
  ];
  const body = h(
    "div",
    { class: "pz-keys" },
    groups.map(([title, keys]) => h("section", {}, h("h3", {}, title), h("dl", {}, keys.map(line)))),
    h("p", { class: "pz-hint" }, t("keys_hint")),
  );
  openDialog({ title: t("keys_title"), body });
}

function line([keys, meaning]) {
  return h(
    "div",
    {},
    h(
      "dt",
      {},
      keys.map((key) => h("kbd", {}, key)),
    ),
    h("dd", {}, meaning),
  );
}
