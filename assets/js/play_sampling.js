// The form of the sampling fields. Owns what was typed; says of each field which default holds and who set it.
// Invariant: a field that is left empty is not sent, so that the model's own default holds.

import { button, fill, h } from "./dom.js";
import { number, t } from "./i18n.js";
import { playApi } from "./play_api.js";
import { onPlayEngine } from "./play_engine.js";
import { GROUPS, OPEN } from "./play_fields.js";

const WIDE = matchMedia("(min-width: 821px)").matches;
const UNSET = {
  seed: "play_unset_seed",
  dry_sequence_breakers: "play_unset_breakers",
  n: "play_unset_one",
  logprobs: "play_unset_logprobs",
  logprobs_mode: "play_unset_raw",
  speculation: "play_unset_speculation",
  allowed_token_ids: "play_unset_all",
  priority: "play_unset_zero",
};

/**
 * createSampling({given, without, limit, open, onChange}) -> {element, read(), fill(body), destroy()}.
 * limit: "completion" or "chat", whose max_tokens have different defaults. open: the groups that are not folded.
 */
export function createSampling({ given = {}, without = [], limit = "completion", open = WIDE ? OPEN : [], onChange = () => {} }) {
  const fields = new Map();
  const groups = Object.entries(GROUPS).map(([group, kinds]) => {
    const names = Object.keys(kinds).filter((name) => !without.includes(name));
    const made = names.map((name) => {
      const field = createField(name, kinds[name], given[name], changed);
      fields.set(name, field);
      return field.element;
    });
    const count = h("span", { class: "pz-hint" });
    const fold = h(
      "details",
      { class: "pz-play-group", open: open.includes(group) },
      h("summary", {}, t(`play_group_${group}`), " ", count),
      h("div", { class: "pz-play-fields" }, made),
    );
    return { fold, count, names };
  });
  const reset = button(t("play_reset"), () => fillIn({}), { kind: "quiet", iconName: "refresh" });
  const element = h("div", { class: "pz-play-sampling" }, groups.map((group) => group.fold), h("div", {}, reset)); // prettier-ignore

  function changed() {
    for (const { count, names } of groups) {
      const set = names.filter((name) => fields.get(name).isSet()).length;
      count.textContent = set ? t("play_n_set", { n: number(set) }) : "";
    }
    onChange();
  }

  function fillIn(body) {
    for (const [name, field] of fields) field.write(body[name]);
    changed();
  }

  const forget = onPlayEngine(async (engine) => {
    let said = null;
    if (engine) said = await playApi.sampling(engine.id).catch(() => null);
    const known = new Map((said?.fields ?? []).map((field) => [field.name, field]));
    for (const [name, field] of fields) field.describe(known.get(name));
    fields.get("max_tokens").say(limitText(limit, said));
  });
  changed();
  return { element, fill: fillIn, read: () => readAll(fields), destroy: forget };
}

/** {body, problems: [[name, message]]} */
function readAll(fields) {
  const body = {};
  const problems = [];
  for (const [name, field] of fields) {
    try {
      const value = field.read();
      if (value !== undefined) body[name] = value;
    } catch (error) {
      problems.push([name, error.message]);
    }
  }
  return { body, problems };
}

function createField(name, kind, given, changed) {
  const input = createInput(name, kind);
  const note = h("span", { class: "pz-play-default" });
  const check = kind.input === "check";
  input.addEventListener(kind.input === "choice" || check ? "change" : "input", () => {
    refresh();
    changed();
  });
  const title = t(`play_hint_${name}`);
  const wide = kind.input === "lines" || name === "logit_bias" || name === "dry_sequence_breakers";
  const element = h(
    "label",
    { class: `pz-label pz-play-field${wide ? " pz-play-wide" : ""}`, title },
    check
      ? h("span", { class: "pz-check" }, input, h("code", {}, name))
      : [h("code", {}, name), input],
    note,
  );
  const isSet = () => (check ? input.checked : input.value.trim() !== "" || input.validity.badInput);
  const refresh = () => element.classList.toggle("pz-play-set", isSet());
  const write = (value) => {
    const has = value !== undefined && value !== null;
    if (check) input.checked = has && kind.write(value);
    else input.value = has ? kind.write(value) : "";
    refresh();
  };
  write(given);
  describe(note, input, kind, name, undefined);
  return {
    element,
    isSet,
    write,
    read() {
      if (!isSet()) return undefined;
      if (!input.validity.valid) throw new Error(input.validationMessage);
      return kind.read(check ? input.checked : input.value);
    },
    describe: (known) => describe(note, input, kind, name, known),
    say: (text) => fill(note, text),
  };
}

function createInput(name, kind) {
  const props = { name, "aria-describedby": null };
  if (kind.input === "check") return h("input", { ...props, type: "checkbox" });
  if (kind.input === "lines") return h("textarea", { ...props, class: "pz-field pz-play-mono", rows: 2 });
  if (kind.input === "choice") {
    const options = ["", ...kind.options].map((value) => h("option", { value }, value || t("default")));
    return h("select", { ...props, class: "pz-field" }, options);
  }
  const limits = { min: kind.minimum, max: kind.maximum, step: kind.step };
  return h("input", { ...props, ...limits, class: "pz-field", type: kind.input, autocomplete: "off" });
}

function limitText(limit, said) {
  if (limit === "completion") return t("play_limit_completion");
  return said ? t("play_limit_context_of", { most: number(said.max_model_len) }) : t("play_limit_context");
}

/** Which default holds, and who says so. */
function describe(note, input, kind, name, known) {
  if (known && kind.input === "number") {
    input.min = known.minimum;
    input.max = known.maximum;
  }
  const value = known?.value ?? null;
  if (kind.input === "number") input.placeholder = value === null ? "" : number(value, digits(value));
  let text = t(UNSET[name] ?? "play_unset");
  if (value !== null) text = t(`play_from_${known.source}`, { value: number(value, digits(value)) });
  fill(note, text);
}

const digits = (value) => Math.min(4, (String(value).split(".")[1] ?? "").length);
