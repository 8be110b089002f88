// Names and figures of a thing, as a list.

import { h } from "./dom.js";

/** A definition list of [name, value] pairs; what has no value is left out. */
export function factList(known) {
  return h(
    "dl",
    { class: "pz-model-facts" },
    known
      .filter(([, value]) => value)
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "pz-figure" }, value))),
  );
}
