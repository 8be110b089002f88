// The fields of a load: each option of LoadOptions that an operator sets by hand, as a field and back. Owns ranges and
// units; knows nothing of estimates or of who keeps options. Invariant: an empty field says nothing, so the server chooses.

import { h, setText } from "./dom.js";
import { number, t } from "./i18n.js";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const MAX_DRAFTS = 15;
const YES_NO = { values: ["true", "false"], label: (value) => t(value === "true" ? "yes" : "no") };

/** option: of LoadOptions. kind "number": shown in `unit`s of the option. kind "choice": the first value is built in. */
const FIELDS = [
  { name: "max_model_len", option: "max_model_len", kind: "number", min: 1, max: 10000000 },
  { name: "max_num_seqs", option: "max_num_seqs", kind: "number", min: 1, max: 1024 },
  { name: "kv_cache_dtype", option: "kv_cache_dtype", kind: "choice", values: ["auto", "int8", "fp8"] },
  {
    name: "speculation",
    option: "speculation",
    kind: "choice",
    values: ["auto", "off", "ngram", "suffix", "draft_model", "eagle", "medusa", "hybrid"],
  },
  { name: "drafter", option: "drafter", kind: "choice", values: [""], label: () => t("automatic") },
  { name: "num_speculative_tokens", option: "num_speculative_tokens", kind: "number", min: 1, max: MAX_DRAFTS },
  { name: "speculation_rule", option: "speculation_rule", kind: "choice", values: ["match", "rejection"] },
  { name: "mod_idle_minutes", option: "idle_unload_s", kind: "number", min: 1, max: 43200, unit: 60 },
  { name: "mod_memory_limit", option: "memory_limit_bytes", kind: "number", min: 0, max: 1e6, step: "any", unit: GIB },
];
const MORE_FIELDS = [
  { name: "kv_mib", option: "kv_cache_memory_bytes", kind: "number", min: 1, max: 1 << 24, unit: MIB },
  { name: "mod_gpu_share", option: "gpu_memory_utilization", kind: "number", min: 1, max: 100, unit: 0.01 },
  { name: "dtype", option: "dtype", kind: "choice", values: ["auto", "bfloat16", "float32"] },
  { name: "kernel_backend", option: "kernel_backend", kind: "choice", values: ["auto", "cpu_ops", "triton_ops", "reference"] },
  { name: "activation_bits", option: "activation_bits", kind: "choice", values: ["auto", "8", "16"] },
  { name: "recorded_steps", option: "recorded_steps", kind: "choice", ...YES_NO },
];
const OF_SPECULATION = ["num_speculative_tokens", "speculation_rule", "drafter"];
const KNOWN = new Set([...FIELDS, ...MORE_FIELDS].map((field) => field.option));

/** {element, options(), set(options, sourceOf), addDrafters(list), valid(), problem()}; `sourceOf(option)`: where a value is from. */
export function createLoadFields(contextLength) {
  let others = {}; // options that have no field are kept as they are
  const entries = [...FIELDS, ...MORE_FIELDS].map((field) => entry(field, contextLength));
  const by = Object.fromEntries(entries.map((each) => [each.option, each]));
  const form = (list) => h("div", { class: "pz-form" }, list.map((each) => each.element));
  const more = h("details", { class: "pz-log pz-more" }, h("summary", {}, t("mod_more_options")), form(entries.slice(FIELDS.length)));
  const cost = h("p", { class: "pz-hint", hidden: true }, t("kv_cache_dtype_cost"));
  const element = h("div", { class: "pz-stack" }, form(entries.slice(0, FIELDS.length)), cost, more);

  function settle() {
    cost.hidden = by.kv_cache_dtype.input.value === "auto";
    const off = by.speculation.input.value === "off";
    for (const name of OF_SPECULATION) by[name].input.disabled = off;
  }
  element.addEventListener("input", (event) => {
    const changed = entries.find((each) => each.input === event.target);
    if (changed) setText(changed.source, t("mod_source_changed"));
    settle();
  });

  function set(options, sourceOf) {
    others = Object.fromEntries(Object.entries(options).filter(([name]) => !KNOWN.has(name)));
    for (const each of entries) {
      each.set(options[each.option]);
      setText(each.source, sourceOf(each.option));
    }
    if (entries.slice(FIELDS.length).some((each) => options[each.option] !== undefined)) more.open = true;
    settle();
  }

  function options() {
    const wishes = { ...others };
    for (const each of entries) {
      const value = each.value();
      if (value !== undefined) wishes[each.option] = value;
    }
    return wishes;
  }

  /** One option by hand, as a way out of a refusal does. */
  function change(changes) {
    for (const [name, value] of Object.entries(changes)) {
      by[name].set(value ?? undefined);
      setText(by[name].source, t("mod_source_changed"));
    }
    settle();
  }

  /** What may draft; one that is chosen stays chosen, whether the list knows it or not. */
  function addDrafters(list) {
    for (const each of list) addOption(by.drafter.input, each.id, t(`drafter_${each.source}`, { name: each.id }));
  }

  /** What is wrong with the first field in red, and what it takes; empty where nothing is. */
  function problem() {
    const wrong = entries.find((each) => !each.input.checkValidity());
    if (!wrong) return "";
    const { min, max } = wrong.input;
    return t("mod_field_range", { field: wrong.label, min: number(Number(min)), max: number(Number(max)) });
  }

  return { element, options, set, change, addDrafters, problem, valid: () => problem() === "" };
}

function addOption(select, value, label) {
  const known = [...select.options].find((option) => option.value === value);
  if (known) known.textContent = label;
  else select.append(h("option", { value }, label));
}

function entry(field, contextLength) {
  const input = field.kind === "number" ? numberInput(field, contextLength) : choice(field);
  const source = h("span", { class: "pz-source" });
  const element = h(
    "label",
    { class: "pz-label", title: t(`${field.name}_hint`) },
    h("span", { class: "pz-row pz-label-head" }, h("span", { class: "pz-grow" }, t(field.name)), source),
    input,
  );
  const read = field.kind === "number" ? () => readNumber(field, input) : () => readChoice(field, input);
  const write = field.kind === "number" ? (value) => writeNumber(field, input, value) : (value) => writeChoice(field, input, value);
  return { option: field.option, label: t(field.name), input, source, element, value: read, set: write };
}

function numberInput(field, contextLength) {
  const max = field.option === "max_model_len" ? (contextLength ?? field.max) : field.max;
  const { min, step = 1 } = field;
  const placeholder = field.option === "idle_unload_s" ? t("mod_never") : t("automatic");
  return h("input", { class: "pz-field pz-figure", type: "number", min, max, step, placeholder });
}

const choice = (field) =>
  h(
    "select",
    { class: "pz-field" },
    field.values.map((value) => h("option", { value }, (field.label ?? ((name) => name))(value))),
  );

/** A value that was given and is shown rounded stays as it was until it is changed by hand. */
function readNumber(field, input) {
  if (input.value === "") return undefined;
  if (input.value === input.dataset.shown) return Number(input.dataset.exact);
  const value = Number(input.value) * (field.unit ?? 1);
  return field.unit === 0.01 ? value : Math.round(value);
}

const readChoice = (field, input) =>
  input.value === field.values[0] ? undefined : field.option === "recorded_steps" ? input.value === "true" : input.value;

function writeNumber(field, input, value) {
  const given = value !== undefined && value !== null;
  input.value = given ? String(Number((value / (field.unit ?? 1)).toPrecision(4))) : "";
  Object.assign(input.dataset, { shown: input.value, exact: given ? value : "" });
}

function writeChoice(field, input, value) {
  const wanted = value === undefined ? field.values[0] : String(value);
  if (![...input.options].some((option) => option.value === wanted)) addOption(input, wanted, wanted);
  input.value = wanted;
}
