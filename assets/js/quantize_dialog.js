// Make a quantised model of one on disk: what to write, in which groups, calibrated on which text.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, h } from "./dom.js";
import { t } from "./i18n.js";
import { startFromDialog } from "./job_start.js";

const FORMATS = ["awq", "gptq", "compressed-tensors"];
const GROUP_SIZES = [128, 64, 32, 16];

export function openQuantizeDialog(row) {
  const format = select(FORMATS);
  const group = select(GROUP_SIZES);
  const order = h("input", { type: "checkbox", id: "pz-desc-act" });
  const text = h("textarea", { class: "pz-field", rows: 4, placeholder: t("calibration_placeholder") });
  const outcome = h("div", { "aria-live": "polite" });
  const start = button(t("quantize"), () => begin(), { kind: "primary", iconName: "sliders" });
  const ordered = h("label", { class: "pz-check", for: "pz-desc-act" }, order, t("act_order_hint"));
  const form = h(
    "div",
    { class: "pz-stack" },
    h("p", { class: "pz-hint" }, t("quantize_text", { model: row.name || row.id })),
    h(
      "div",
      { class: "pz-form" },
      h("label", { class: "pz-label" }, t("format"), format),
      h("label", { class: "pz-label" }, t("group_size"), group),
    ),
    ordered,
    h("label", { class: "pz-label" }, t("calibration"), text),
    outcome,
  );
  const dialog = openDialog({
    title: t("quantize_model", { model: row.name || row.id }),
    body: form,
    actions: [button(t("cancel"), () => dialog.close()), start],
  });
  const showOrder = () => {
    ordered.hidden = format.value === "awq"; // AWQ has none
  };
  format.addEventListener("change", showOrder);
  showOrder();
  chooseGroup(row, group);

  const begin = () => startFromDialog({ dialog, start, outcome, call: () => api.quantize(row.id, wish()) });

  function wish() {
    const wanted = { format: format.value, group_size: Number(group.value) };
    if (order.checked && format.value !== "awq") wanted.desc_act = true;
    if (text.value.trim()) wanted.calibration_text = text.value;
    return wanted;
  }
}

const select = (values) =>
  h(
    "select",
    { class: "pz-field" },
    values.map((value) => h("option", { value }, String(value))),
  );

/** Groups that do not divide the model's matrices cannot be chosen; the largest that does is. */
async function chooseGroup(row, group) {
  const sizes = await api
    .doctor(row.id)
    .then((found) => found.checkpoint.input_sizes)
    .catch(() => []); // the choice is then the operator's, and the answer the server's
  for (const option of group.options) option.disabled = sizes.some((size) => size % Number(option.value));
  const first = [...group.options].find((option) => !option.disabled);
  if (first && group.selectedOptions[0]?.disabled) group.value = first.value;
}
