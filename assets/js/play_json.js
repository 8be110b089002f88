// JSON and curl as one can copy them. Owns the panels that show a request and its answer.

import { button, h, setText } from "./dom.js";
import { t } from "./i18n.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export const curlOf = (path, body) =>
  `curl ${location.origin}${path} -H 'Content-Type: application/json' -d ${quote(JSON.stringify(body))}`;

/** A folded panel: `show(text)` while it is open, or when it is opened. `text` may be a function, asked when needed. */
export function codePanel(title, extra = []) {
  let source = () => "";
  const code = h("pre", { class: "pz-play-code", tabindex: 0, "aria-label": title });
  const copied = h("span", { class: "pz-hint", role: "status" });
  const copy = async (text) => {
    await navigator.clipboard.writeText(text);
    copied.textContent = t("play_copied");
    setTimeout(() => (copied.textContent = ""), 2000);
  };
  const panel = h(
    "details",
    { class: "pz-play-fold", ontoggle: () => panel.open && setText(code, source()) },
    h("summary", {}, title),
    h(
      "div",
      { class: "pz-actions" },
      button(t("copy"), () => copy(source()), { kind: "quiet", iconName: "copy" }),
      ...extra.map(([label, text]) => button(label, () => copy(text()), { kind: "quiet", iconName: "copy" })),
      copied,
    ),
    code,
  );
  return {
    element: panel,
    show(text) {
      source = typeof text === "function" ? text : () => text;
      if (panel.open) setText(code, source());
    },
  };
}

/** What stands in a field for JSON: {value} or {error}; an empty field is {value: undefined}. */
export function readJson(text) {
  if (!text.trim()) return { value: undefined };
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: String(error.message) };
  }
}
