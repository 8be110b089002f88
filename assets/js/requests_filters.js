// The filters above the list. Owns their fields; the page owns what is set. Knows nothing of rows.

import { button, fill, h } from "./dom.js";
import { clock, t, word } from "./i18n.js";
import { RANGE_NAMES } from "./request_address.js";

const STATES = ["queued", "running", "finished", "failed", "interrupted"];
const SOURCES = ["chat", "completion", "conversation", "embedding"];
const TYPING_MS = 300;

/** {element, show(filters, models)}; `onChange(filters)` is called with what is set from then on. */
export function createFilters(onChange) {
  let filters = {};
  const change = (changes) => onChange({ ...filters, ...changes });
  const select = (name) => h("select", { class: "pz-field", onchange: () => change({ [name]: fields[name].value }) });
  let typing = 0;
  const search = h("input", {
    class: "pz-field pz-req-search",
    type: "search",
    id: "pz-req-search",
    placeholder: t("req_filter_id_hint"),
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ q: search.value.trim() }), TYPING_MS);
    },
  });
  const fields = { model: select("model"), state: select("state"), source: select("source"), range: null };
  fields.range = h("select", {
    class: "pz-field",
    onchange: () => change({ range: fields.range.value, since: "", until: "" }),
  });
  const slow = h("input", { type: "checkbox", onchange: () => change({ slow: slow.checked ? "1" : "" }) });
  const reset = button(t("req_filter_reset"), () => onChange({}), { kind: "quiet", iconName: "close" });
  const label = (name, field) => h("label", { class: "pz-label" }, t(`req_filter_${name}`), field);
  const element = h(
    "form",
    {
      class: "pz-req-filters",
      role: "search",
      "aria-label": t("req_filters"),
      onsubmit: (event) => event.preventDefault(),
    },
    label("id", search),
    label("model", fields.model),
    label("state", fields.state),
    label("source", fields.source),
    label("range", fields.range),
    h(
      "label",
      { class: "pz-label pz-check pz-req-slow-only", title: t("req_slow_definition") },
      slow,
      t("req_filter_slow"),
    ),
    reset,
  );

  function show(set, models) {
    filters = set;
    options(fields.model, filters.model, [["", t("req_filter_all")], ...models.map((id) => [id, id])]);
    options(fields.state, filters.state, [
      ["", t("req_filter_all")],
      ...STATES.map((name) => [name, word("request", name)]),
    ]);
    options(fields.source, filters.source, [
      ["", t("req_filter_all")],
      ...SOURCES.map((name) => [name, t(`req_source_${name}`)]),
    ]);
    options(fields.range, filters.range ?? (filters.since || filters.until ? "custom" : ""), ranges(filters));
    if (document.activeElement !== search) search.value = filters.q ?? "";
    slow.checked = Boolean(filters.slow);
    reset.hidden = !Object.values(filters).some(Boolean);
  }
  return { element, show };
}

/** The spans that can be chosen, and the one that came with the address. */
function ranges({ since, until }) {
  const fixed = [["", t("req_range_any")], ...RANGE_NAMES.map((name) => [name, t(`req_range_${name}`)])];
  if (!since && !until) return fixed;
  const end = (epoch) => (epoch ? clock(Number(epoch)) : "…");
  return [...fixed, ["custom", `${end(since)} – ${end(until)}`]];
}

/** The choices of a select. What is set and not among them, such as a model that is gone, stays one. */
function options(select, chosen, choices) {
  const value = chosen ?? "";
  const all = choices.some(([name]) => name === value) ? choices : [...choices, [value, value]];
  const key = JSON.stringify(all);
  if (select.dataset.choices !== key) {
    select.dataset.choices = key;
    fill(
      select,
      all.map(([name, text]) => h("option", { value: name }, text)),
    );
  }
  select.value = value;
}
