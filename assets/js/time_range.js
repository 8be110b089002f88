// The stretch of time that is looked at: its names, its form in the address, and the control that chooses it.
// Knows nothing of what is measured. A range is {name, spanS} up to now, or {name: "custom", since, until}.

import { button, h } from "./dom.js";
import { t } from "./i18n.js";

const SPANS = { "5m": 300, "1h": 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400 };
const LONGEST_S = 90 * 86400; // nothing older is kept
const CUSTOM = /^(\d{9,11})-(\d{9,11})$/;

export const relative = (name) => ({ name, spanS: SPANS[name] });

/** The range of an address's word; null where it means none. */
export function parseRange(text) {
  if (text in SPANS) return relative(text);
  const [, since, until] = (CUSTOM.exec(text ?? "") ?? []).map(Number);
  return since < until && until - since <= LONGEST_S ? { name: "custom", since, until } : null;
}

export const rangeWord = (range) => (range.name === "custom" ? `${range.since}-${range.until}` : range.name);

/** [since, until] now; `pausedAt` is where time stands still. */
export function boundsOf(range, pausedAt = null) {
  if (range.name === "custom") return [range.since, range.until];
  const until = pausedAt ?? Date.now() / 1000;
  return [until - range.spanS, until];
}

const asInput = (epoch) => {
  const date = new Date(epoch * 1000);
  return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};

/** {element, show(range)}: the spans as one group of buttons, and two times for any other. */
export function createRangePicker(onChoose) {
  const names = [...Object.keys(SPANS), "custom"];
  const buttons = names.map((name) =>
    button(name === "custom" ? t("mon_custom") : t(`range_${name}`), () => choose(name), {
      kind: "segment",
      "data-range": name,
    }),
  );
  const time = (label) => h("input", { type: "datetime-local", class: "pz-field", "aria-label": label });
  const [from, to] = [time(t("mon_from")), time(t("mon_to"))];
  const problem = h("span", { class: "pz-bad", role: "alert" });
  const form = h(
    "form",
    { class: "pz-row pz-custom-range", hidden: true, onsubmit: submit },
    h("label", { class: "pz-row" }, h("span", {}, t("mon_from")), from),
    h("label", { class: "pz-row" }, h("span", {}, t("mon_to")), to),
    h("button", { type: "submit", class: "pz-button pz-secondary" }, t("mon_apply")),
    problem,
  );
  let shown = relative("5m");

  function choose(name) {
    if (name !== "custom") return onChoose(relative(name));
    const [since, until] = boundsOf(shown);
    [from.value, to.value] = [asInput(since), asInput(until)];
    form.hidden = !form.hidden;
    if (!form.hidden) from.focus();
    return undefined;
  }

  function submit(event) {
    event.preventDefault();
    const [since, until] = [from, to].map((input) => Math.floor(new Date(input.value) / 1000));
    const range = parseRange(`${since}-${until}`);
    problem.textContent = range ? "" : t("mon_bad_range");
    if (range) onChoose(range);
  }

  function show(range) {
    shown = range;
    for (const node of buttons) node.setAttribute("aria-pressed", String(node.dataset.range === range.name));
    form.hidden = range.name !== "custom";
    if (range.name === "custom") [from.value, to.value] = [asInput(range.since), asInput(range.until)];
  }

  const segments = h("div", { class: "pz-segments", role: "group", "aria-label": t("time_range") }, buttons);
  return { element: segments, form, show };
}
