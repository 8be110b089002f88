// Before a load: what the operator wishes, and what that will take of the memory that is free now.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { bytes, number, t, word } from "./i18n.js";
import { startLoad } from "./jobs.js";
import { createMemoryBar, partsLegend } from "./memory_bar.js";

const TYPING_PAUSE_MS = 250;
const MIB = 2 ** 20;
const DTYPES = ["auto", "bfloat16", "float32"];
const KV_CACHE_DTYPES = ["auto", "int8", "fp8"];
const SPECULATIONS = ["auto", "off", "ngram", "suffix", "draft_model", "eagle", "medusa", "hybrid"];
const SPECULATION_RULES = ["match", "rejection"];
const MAX_DRAFTS = 15;
const KERNEL_BACKENDS = ["auto", "cpu_ops", "triton_ops", "reference"];

const CHOICES = ["dtype", "kv_cache_dtype", "kernel_backend", "speculation", "speculation_rule", "drafter"];

export function openLoadDialog(row) {
  const fields = {
    max_model_len: numberField(1, row.context_length ?? 10000000),
    max_num_seqs: numberField(1, 1024),
    kv_mib: numberField(1, 1 << 24),
    dtype: choice(DTYPES),
    kv_cache_dtype: choice(KV_CACHE_DTYPES),
    kernel_backend: choice(KERNEL_BACKENDS),
    recorded_steps: choice(["true", "false"], (name) => t(name === "true" ? "yes" : "no")),
    speculation: choice(SPECULATIONS),
    num_speculative_tokens: numberField(1, MAX_DRAFTS),
    speculation_rule: choice(SPECULATION_RULES),
    drafter: choice([""], () => t("automatic")),
  };
  offerDrafters(row, fields.drafter);
  const cost = h("p", { class: "pz-hint", hidden: true }, t("kv_cache_dtype_cost"));
  const bar = createMemoryBar("pz-estimate-bar");
  const verdict = h("div", { class: "pz-estimate", "aria-live": "polite" });
  const load = button(t("load"), start, { kind: "primary", iconName: "play" });
  const form = h(
    "div",
    { class: "pz-form" },
    Object.entries(fields).map(([name, field]) =>
      h("label", { class: "pz-label", title: t(`${name}_hint`) }, t(name), field),
    ),
  );
  const dialog = openDialog({
    title: t("load_model", { model: row.name || row.id }),
    body: [form, cost, h("p", { class: "pz-hint" }, t("load_hint")), bar.element, verdict],
    actions: [button(t("cancel"), () => dialog.close()), load],
  });
  let timer = 0;
  let asked = 0;

  function options() {
    const wishes = {};
    for (const name of CHOICES) wishes[name] = fields[name].value;
    wishes.recorded_steps = fields.recorded_steps.value === "true";
    if (fields.max_model_len.value) wishes.max_model_len = Number(fields.max_model_len.value);
    if (fields.max_num_seqs.value) wishes.max_num_seqs = Number(fields.max_num_seqs.value);
    if (fields.num_speculative_tokens.value)
      wishes.num_speculative_tokens = Number(fields.num_speculative_tokens.value);
    if (fields.kv_mib.value) wishes.kv_cache_memory_bytes = Math.round(Number(fields.kv_mib.value) * MIB);
    return wishes;
  }

  async function estimate() {
    const mine = (asked += 1);
    try {
      const found = await api.estimate(row.id, options());
      if (mine === asked) showEstimate(bar, verdict, found);
    } catch (error) {
      if (mine === asked) fill(verdict, problem(error.message || t("server_unreachable")));
    }
  }

  async function start() {
    load.disabled = true;
    if (await startLoad(row.id, options())) dialog.close();
    load.disabled = false;
  }

  form.addEventListener("input", () => {
    load.disabled = form.querySelector(":invalid") !== null;
    cost.hidden = fields.kv_cache_dtype.value === "auto";
    const off = fields.speculation.value === "off";
    for (const name of ["num_speculative_tokens", "speculation_rule", "drafter"]) fields[name].disabled = off;
    clearTimeout(timer);
    timer = setTimeout(estimate, TYPING_PAUSE_MS);
  });
  estimate();
}

/** What may draft for the model; a list that cannot be read leaves the choice to the engine. */
async function offerDrafters(row, field) {
  const found = await api.drafters(row.id).catch(() => []);
  for (const each of found.filter((drafter) => !drafter.error))
    field.append(h("option", { value: each.id }, t(`drafter_${each.source}`, { name: each.id })));
}

function numberField(min, max) {
  return h("input", { class: "pz-field pz-figure", type: "number", min, max, step: 1, placeholder: t("automatic") });
}

const choice = (names, label = (name) => name) =>
  h(
    "select",
    { class: "pz-field" },
    names.map((name) => h("option", { value: name }, label(name))),
  );

const problem = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

/** Who has the memory that is not free; a refusal's own message says it too. */
const heldBy = (holders) =>
  holders
    .filter((holder) => holder.bytes > 0)
    .map((holder) => `${holder.kind === "engine" ? holder.name : word("part", holder.kind)} ${bytes(holder.bytes)}`)
    .join(", ");

function showEstimate(bar, verdict, found) {
  const parts = ["weights", "drafter", "kv", "workspace", "runtime"].map((name) => ({ name, bytes: found[`${name}_bytes`] }));
  bar.update(parts, Math.max(found.available_bytes, found.total_bytes));
  const numbers = {
    total: bytes(found.total_bytes),
    available: bytes(found.available_bytes),
    short: bytes(found.short_by_bytes),
  };
  fill(
    verdict,
    partsLegend(parts),
    found.fits
      ? h("p", { class: "pz-fit", "data-fits": "yes" }, icon("check"), h("span", {}, t("estimate_fits", numbers)))
      : problem(found.message || t("estimate_short", numbers)),
    found.fits ? h("p", { class: "pz-hint pz-figure" }, t("estimate_held", { held: heldBy(found.held) })) : null,
    h(
      "p",
      { class: "pz-hint pz-figure" },
      t("estimate_context", { context: number(found.max_model_len), per_token: bytes(found.kv_bytes_per_token) }),
    ),
    h("p", { class: "pz-hint" }, t("estimate_speculation", { name: found.speculation })),
    found.drafter_note ? h("p", { class: "pz-hint" }, found.drafter_note) : null,
  );
}
