// The memory of the machine as a bar of parts, one hue a part; the table twin is its tooltip and its label.

import { h, fill } from "./dom.js";
import { bytes, word } from "./i18n.js";

const PART_HUES = {
  weights: "weights",
  draft_weights: "draft",
  drafter: "draft",
  kv: "kv",
  workspace: "workspace",
  runtime: "runtime",
  app: "app",
  other: "other",
  free: "free",
};

/** {element, update(parts, total)}; parts: [{name, bytes}]. */
export function createMemoryBar(className = "") {
  const element = h("div", { class: `pz-parts ${className}`, role: "img" });
  function update(parts, total) {
    const label = parts.map((part) => `${word("part", part.name)}: ${bytes(part.bytes)}`).join("\n");
    element.title = label;
    element.setAttribute("aria-label", label.replaceAll("\n", ", "));
    fill(
      element,
      parts.filter((part) => part.name !== "free" && part.bytes > 0).map((part) => segment(part, total)),
    );
  }
  return { element, update };
}

function segment(part, total) {
  return h("span", {
    class: `pz-part pz-part-${part.name}`,
    style: { width: `${(100 * part.bytes) / total}%`, background: `var(--pz-${PART_HUES[part.name] ?? "other"})` },
  });
}

/** Names and numbers beside the bar. */
export function partsLegend(parts) {
  return h(
    "ul",
    { class: "pz-legend" },
    parts
      .filter((part) => part.bytes > 0)
      .map((part) =>
        h(
          "li",
          {},
          h("span", {
            class: `pz-swatch pz-part-${part.name}`,
            style: { background: `var(--pz-${PART_HUES[part.name] ?? "other"})` },
          }),
          h("span", {}, word("part", part.name)),
          h("span", { class: "pz-figure" }, bytes(part.bytes)),
        ),
      ),
  );
}
