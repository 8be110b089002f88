// The drawer with a conversation's preset, system prompt and sampling. Saves by itself a moment after the last change.

import { createPresets } from "./chat_presets.js";
import { fill, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";

const TYPING_PAUSE_MS = 500;
const FIELDS = [
  { name: "temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_p", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", min: 0, max: 1000, step: 1 },
  { name: "min_p", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", min: 1, max: 1000000, step: 1 },
  { name: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

/** `save({system_prompt, sampling})` returns whether it was kept. */
export function createDrawer({ save, close }) {
  let timer = 0;
  const mark = h("span", { class: "pz-saved", role: "status" });
  const prompt = h("textarea", {
    class: "pz-field",
    rows: 5,
    placeholder: t("system_prompt_placeholder"),
    id: "pz-system",
  });
  const inputs = new Map(FIELDS.map((field) => [field.name, numberInput(field)]));
  const trace = h("input", { type: "checkbox", id: "pz-trace" });
  const presets = createPresets({ take, values });
  const element = h(
    "aside",
    { class: "pz-drawer", "aria-label": t("chat_settings") },
    h(
      "header",
      { class: "pz-drawer-head" },
      h("h2", {}, t("chat_settings")),
      mark,
      iconButton("close", t("close"), close),
    ),
    presets.element,
    h("label", { class: "pz-label", for: "pz-system" }, t("system_prompt")),
    prompt,
    h(
      "div",
      { class: "pz-drawer-grid" },
      FIELDS.map((field) => labelled(field.name, inputs.get(field.name))),
    ),
    h("p", { class: "pz-hint" }, t("sampling_hint")),
    h("label", { class: "pz-check", for: "pz-trace", title: t("chat_trace_hint") }, trace, h("span", {}, t("chat_trace"))),
  );
  element.addEventListener("input", (event) => {
    if (event.target.id === "pz-preset") return;
    presets.onEdit();
    saveSoon();
  });

  function saveSoon() {
    fill(mark);
    clearTimeout(timer);
    timer = setTimeout(flush, TYPING_PAUSE_MS);
  }

  function put({ system_prompt: system, sampling }) {
    prompt.value = system ?? "";
    for (const [name, input] of inputs) input.value = sampling?.[name] ?? "";
    trace.checked = Boolean(sampling?.trace);
  }

  /** A preset's values; what it does not say is the server's default. */
  function take(preset) {
    put(preset);
    saveSoon();
  }

  /** Save now what was typed. Fields left empty are the server's defaults. */
  async function flush() {
    clearTimeout(timer);
    timer = 0;
    if (element.querySelector(":invalid")) {
      fill(mark, h("span", { class: "pz-bad" }, t("out_of_range")));
      return;
    }
    if (await save(values())) fill(mark, t("saved"));
  }

  function values() {
    const sampling = {};
    for (const [name, input] of inputs) if (input.value !== "") sampling[name] = Number(input.value);
    if (trace.checked) sampling.trace = true;
    return { system_prompt: prompt.value, sampling };
  }

  function show(conversation) {
    if (timer) return;
    put(conversation);
    presets.match(values());
    fill(mark);
  }

  return { element, show, values, flushIfPending: () => (timer ? flush() : undefined) };
}

function numberInput({ name, min, max, step }) {
  return h("input", {
    class: "pz-field pz-figure",
    type: "number",
    id: `pz-${name}`,
    min,
    max,
    step,
    placeholder: t("default"),
    inputmode: "decimal",
  });
}

function labelled(name, input) {
  return h("label", { class: "pz-label", for: `pz-${name}`, title: t(`${name}_hint`) }, t(name), input);
}
