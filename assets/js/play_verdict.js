// Whether an answer is what its grammar promised, checked in the browser and apart from the engine. Owns the words.

import { h, icon } from "./dom.js";
import { number, t } from "./i18n.js";
import { checkSchema } from "./play_schema_check.js";

const good = (text) => h("p", { class: "pz-ok pz-play-said" }, icon("check"), h("span", {}, text));
const bad = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

/** Nodes that say it; body: the request's, finish: why the answer ended. */
export function checkAnswer(body, text, finish) {
  const cut = finish === "length" || finish === "abort";
  if (cut) return [h("p", { class: "pz-warn pz-play-said" }, icon("info"), h("span", {}, t("play_only_begun")))];
  if (body.guided_json !== undefined) return againstSchema(body.guided_json, text);
  if (body.guided_regex !== undefined) return [againstRegex(body.guided_regex, text)];
  if (body.guided_choice !== undefined) {
    return [body.guided_choice.includes(text) ? good(t("play_valid_choice")) : bad(t("play_invalid_choice"))];
  }
  return [h("p", { class: "pz-hint" }, t("play_grammar_not_checked"))];
}

function againstSchema(schema, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return [bad(t("play_not_json", { error: error.message }))];
  }
  const { faults, unchecked } = checkSchema(schema, value);
  const shown = h("pre", { class: "pz-play-code", tabindex: 0, "aria-label": t("play_value") }, JSON.stringify(value, null, 2));
  return [
    faults.length ? faults.map(({ path, keyword }) => bad(t("play_schema_fault", { path, keyword }))) : good(t("play_valid_json")),
    unchecked.length > 0 &&
      h("p", { class: "pz-hint" }, t("play_unchecked", { n: number(unchecked.length), keywords: unchecked.join(", ") })),
    shown,
  ];
}

function againstRegex(source, text) {
  let whole;
  try {
    whole = new RegExp(`^(?:${source})$`, "u");
  } catch {
    return h("p", { class: "pz-hint" }, t("play_regex_unknown"));
  }
  return whole.test(text) ? good(t("play_valid_regex")) : bad(t("play_invalid_regex"));
}
