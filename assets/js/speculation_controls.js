// How an engine speculates, to be set: on or off, how many drafts, by which rule. What is shown is what the server says
// holds now, never what was asked for.

import { api } from "./api.js";
import { button, fill, h, setText } from "./dom.js";
import { number, t } from "./i18n.js";
import { attempt } from "./toast.js";

const RULES = ["match", "rejection"];

/** {element, update(verdict)}; engine: () => id; changed: to be called when the server has taken a change. */
export function createControls(engine, changed) {
  const toggle = button("", () => change({ enabled: !shown.enabled }), { class: "pz-button pz-secondary pz-spec-toggle" });
  const count = h("select", { class: "pz-field", id: "pz-spec-k", onchange: () => change({ num_speculative_tokens: Number(count.value) }) });
  const rule = h(
    "select",
    { class: "pz-field", id: "pz-spec-rule", onchange: () => change({ rule: rule.value }) },
    RULES.map((name) => h("option", { value: name }, name)),
  );
  const clear = button(t("spec_clear"), () => change({ clear: true }), { title: t("spec_clear_hint"), kind: "quiet" });
  const state = h("p", { class: "pz-hint", role: "status" });
  const hint = h("p", { class: "pz-hint" }, t("spec_controls_hint"));
  const element = h(
    "div",
    { class: "pz-spec-switches" },
    h("div", { class: "pz-spec-control" }, h("span", { class: "pz-label" }, t("speculation")), toggle),
    h("div", { class: "pz-spec-control" }, h("label", { class: "pz-label", for: "pz-spec-k", title: t("num_speculative_tokens_hint") }, t("num_speculative_tokens")), count),
    h("div", { class: "pz-spec-control" }, h("label", { class: "pz-label", for: "pz-spec-rule", title: t("speculation_rule_hint") }, t("speculation_rule")), rule),
    h("div", { class: "pz-spec-control" }, h("span", { class: "pz-label" }, t("spec_past")), clear),
  );
  let shown = null;
  let busy = false;

  async function change(wish) {
    busy = true;
    enable();
    await attempt(() => api.setSpeculation(engine(), wish));
    busy = false;
    await changed();
    enable();
  }

  function enable() {
    const able = !busy && shown !== null && shown.proposers.length > 0;
    for (const node of [toggle, count, rule, clear]) node.disabled = !able;
  }

  function update(verdict) {
    if (busy) return;
    shown = verdict;
    enable();
    if (verdict === null) return;
    setText(toggle.lastChild, t(verdict.enabled ? "spec_switch_off" : "spec_switch_on"));
    toggle.setAttribute("aria-pressed", String(verdict.enabled));
    const most = verdict.max_num_speculative_tokens;
    if (count.options.length !== most) fill(count, [...Array(most).keys()].map((k) => h("option", { value: k + 1 }, number(k + 1))));
    if (document.activeElement !== count) count.value = verdict.num_speculative_tokens;
    if (document.activeElement !== rule) rule.value = verdict.rule;
    setText(state, stateText(verdict));
  }
  return { element: h("div", { class: "pz-stack" }, state, element, hint), update };
}

function stateText({ proposers, enabled, proposer, num_speculative_tokens: k, rule }) {
  if (!proposers.length) return t("speculation_off");
  if (!enabled) return t("speculation_disabled");
  return t("spec_effective", { proposer, k: number(k), rule });
}
