// The counts beside the map, and its legend. Every figure carries its definition.

import { fill, h, setText } from "./dom.js";
import { number, percent, t } from "./i18n.js";

const rate = (value) => (value === null || value === undefined ? "–" : t("kv_per_min", { rate: number(value, 1) }));

/** What each line says, from a view. */
const LINES = {
  held: ({ counts }) => `${number(counts.held)} · ${percent(counts.held, counts.total)}`,
  cached: ({ counts }) => number(counts.cached),
  free: ({ counts }) => number(counts.free),
  shared: ({ counts }) => number(counts.shared),
  ahead: ({ counts }) => number(counts.ahead),
  waste: ({ counts }) => t("kv_waste_value", { slots: number(counts.empty_slots), blocks: number(counts.partial) }),
  hits: ({ counts }) =>
    counts.prefix_queries_total
      ? t("kv_hits_value", {
          share: percent(counts.prefix_hits_total, counts.prefix_queries_total),
          hits: number(counts.prefix_hits_total),
        })
      : t("kv_hits_none"),
  evictions: ({ counts, rates }) => `${rate(rates.evictions_per_min)} · ${number(counts.evictions_total)}`,
  preemptions: ({ counts, rates }) => `${rate(rates.preemptions_per_min)} · ${number(counts.preemptions_total)}`,
};

const SWATCHES = ["held", "shared", "partial", "ahead", "cached", "free"];

/** {element, update(view)} */
export function createCounts() {
  const values = {};
  const element = h(
    "dl",
    { class: "pz-kv-counts", "aria-label": t("kv_counts") },
    Object.keys(LINES).map((name) => {
      values[name] = h("dd", { class: "pz-figure", dataset: { count: name } }, "–");
      return h("div", { title: t(`kv_count_${name}_definition`) }, h("dt", {}, t(`kv_count_${name}`)), values[name]);
    }),
  );
  function update(view) {
    for (const [name, line] of Object.entries(LINES)) setText(values[name], line(view));
  }
  return { element, update };
}

/** What the marks of a cell mean. */
export function createLegend() {
  const element = h("ul", { class: "pz-kv-legend" });
  fill(
    element,
    SWATCHES.map((name) =>
      h(
        "li",
        {},
        h("span", { class: `pz-kv-swatch pz-kv-swatch-${name}`, "aria-hidden": "true" }),
        h("span", {}, t(`kv_legend_${name}`)),
      ),
    ),
  );
  return element;
}
