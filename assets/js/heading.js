// The title of a page whose other parts are Gradio's components.

import { fill, h } from "./dom.js";
import { t } from "./i18n.js";

export function mount(element) {
  const page = document.querySelector("[data-frame]").dataset.frame;
  fill(
    element,
    h(
      "div",
      { class: "pz-page-head" },
      h("h1", {}, t(`nav_${page}`)),
      h("p", { class: "pz-sentence" }, t(`${page}_intro`)),
    ),
  );
}
