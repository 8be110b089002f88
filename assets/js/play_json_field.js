// A field for JSON that says at once what is wrong with it.

import { h, setText } from "./dom.js";
import { readJson } from "./play_json.js";

/** createJsonField({label, hint, rows, placeholder, onChange}) -> {element, input, read() -> {value, error}, fill(value)} */
export function createJsonField({ label, hint = "", rows = 4, placeholder = "", onChange }) {
  const fault = h("span", { class: "pz-bad", role: "status" });
  const input = h("textarea", { class: "pz-field pz-play-mono", rows, placeholder, spellcheck: "false" });
  const read = () => readJson(input.value);
  const look = () => {
    const { error } = read();
    input.setAttribute("aria-invalid", String(error !== undefined));
    setText(fault, error ?? "");
  };
  input.addEventListener("input", () => {
    look();
    onChange();
  });
  return {
    input,
    element: h("label", { class: "pz-label", title: hint }, h("code", {}, label), input, fault),
    read,
    fill(value) {
      input.value = value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
      look();
    },
  };
}
