// Train a drafter for a model on disk: what kind, on how much text, for how long.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, h } from "./dom.js";
import { t } from "./i18n.js";
import { startFromDialog } from "./job_start.js";

const KINDS = ["eagle", "medusa"];

export function openTrainDialog(row) {
  const kind = h("select", { class: "pz-field" }, KINDS.map((value) => h("option", { value }, t(`mod_kind_${value}`))));
  const tokens = h("input", { class: "pz-field pz-figure", type: "number", min: 1000, max: 1e9, step: 1000, value: 1000000, required: true });
  const minutes = h("input", { class: "pz-field pz-figure", type: "number", min: 0.1, max: 1e5, step: "any", placeholder: t("mod_no_limit") });
  const passes = h("input", { class: "pz-field pz-figure", type: "number", min: 1, max: 1000, step: 1, value: 3, required: true });
  const texts = h("input", { class: "pz-field", placeholder: t("mod_texts_placeholder"), spellcheck: "false", autocomplete: "off" });
  const from = h("select", { class: "pz-field" }, h("option", { value: "" }, t("mod_from_scratch")));
  const outcome = h("div", { "aria-live": "polite" });
  const start = button(t("mod_train"), () => begin(), { kind: "primary", iconName: "play" });
  const field = (name, input) => h("label", { class: "pz-label", title: t(`${name}_hint`) }, t(name), input);
  const dialog = openDialog({
    title: t("mod_train_of", { model: row.name || row.id }),
    body: [
      h("p", { class: "pz-hint" }, t("mod_train_text")),
      h(
        "div",
        { class: "pz-form" },
        field("mod_kind", kind),
        field("mod_tokens", tokens),
        field("mod_minutes_of_training", minutes),
        field("mod_passes", passes),
      ),
      field("mod_texts", texts),
      field("mod_start_from", from),
      outcome,
    ],
    actions: [button(t("cancel"), () => dialog.close()), start],
  });
  dialog.node.addEventListener("input", () => {
    start.disabled = dialog.node.querySelector(":invalid") !== null;
  });
  offerOlder(row, from);

  const begin = () => startFromDialog({ dialog, start, outcome, call: () => api.trainDrafter(row.id, wish()) });

  function wish() {
    const wanted = { kind: kind.value, tokens: Number(tokens.value), passes: Number(passes.value) };
    if (minutes.value) wanted.minutes = Number(minutes.value);
    if (texts.value.trim()) wanted.texts = texts.value.trim();
    if (from.value) wanted.start_from = from.value;
    return wanted;
  }
}

/** Drafters of this model to go on from; without a list one begins anew. */
async function offerOlder(row, select) {
  const found = await api.drafters(row.id).catch(() => []);
  for (const each of found.filter((drafter) => drafter.source !== "model" && drafter.path && !drafter.error))
    select.append(h("option", { value: each.path }, t(`drafter_${each.source}`, { name: each.id })));
}
