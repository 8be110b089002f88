// The form of one alert rule. Invariant: a rule that was changed elsewhere meanwhile is not overwritten; it says so.

import { splitDuration } from "./alert_list.js";
import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";

const FACTORS = { s: 1, min: 60, h: 3600 };
const SUGGESTED = {
  requests_waiting: 100,
  requests_running: 8,
  tokens_per_s: 5,
  kv_used_percent: 95,
  ttft_p95_s: 2,
  latency_p95_s: 30,
  latency_p95_ratio: 2,
  acceptance_percent: 30,
  engine_down: 0,
  engine_silent_s: 30,
  device_memory_percent: 98,
  host_memory_percent: 95,
  host_cpu_percent: 95,
  gpu_temperature_c: 85,
  disk_free_gib: 2,
};
const LOW_IS_BAD = new Set(["tokens_per_s", "acceptance_percent", "disk_free_gib"]);

/** Change `rule`, or make a new one (null). `onsaved` is called after it was kept. */
export function openRuleDialog(rule, metrics, onsaved) {
  const form = fields(rule, metrics);
  const problem = h("p", { class: "pz-problem", role: "alert", hidden: true });
  const save = button(t("set_save"), submit, { kind: "primary" });
  async function submit() {
    const wrong = [form.threshold, form.duration, form.webhook].find((field) => !field.checkValidity());
    if (wrong) return void wrong.reportValidity();
    save.disabled = true;
    try {
      await keep(rule, form);
      dialog.close();
      onsaved();
    } catch (error) {
      if (error.status === undefined) throw error;
      const text = error.status === 0 ? t("server_unreachable") : error.message;
      fill(problem, icon("warning"), h("span", {}, error.status === 409 ? t("set_changed_elsewhere_rule") : text));
      problem.hidden = false;
      if (error.status === 409) onsaved();
    }
    save.disabled = false;
    return undefined;
  }
  const dialog = openDialog({
    title: t(rule ? "alert_edit_rule" : "alert_new_rule"),
    body: [form.element, problem],
    actions: [button(t("cancel"), () => dialog.close()), save],
  });
}

function keep(rule, form) {
  const wish = {
    metric: form.metric.value,
    comparison: form.comparison.value,
    threshold: Number(form.threshold.value),
    for_s: Number(form.duration.value) * FACTORS[form.unit.value],
    severity: form.severity.value,
    webhook: form.webhook.value.trim() || null,
  };
  return rule ? api.changeAlertRule(rule.id, rule.version, wish) : api.addAlertRule(wish);
}

function fields(rule, metrics) {
  const form = {};
  form.metric = choice(
    metrics.map(({ name }) => [name, t(`alert_metric_${name}`)]),
    rule?.metric ?? "requests_waiting",
  );
  form.comparison = choice(
    [
      ["above", t("alert_is_above")],
      ["below", t("alert_is_below")],
    ],
    rule?.comparison ?? "above",
  );
  form.threshold = h("input", { class: "pz-field", type: "number", step: "any", required: true, value: "" });
  const [amount, unit] = splitDuration(rule?.for_s ?? 10);
  form.duration = h("input", {
    class: "pz-field",
    type: "number",
    min: 0,
    step: "any",
    required: true,
    value: String(amount),
  });
  form.unit = choice(
    Object.keys(FACTORS).map((name) => [name, name]),
    unit,
  );
  form.unit.setAttribute("aria-label", t("alert_duration_unit"));
  form.severity = choice(
    ["info", "warning", "error"].map((name) => [name, t(`alert_severity_${name}`)]),
    rule?.severity ?? "warning",
  );
  form.webhook = h("input", {
    class: "pz-field",
    type: "url",
    pattern: "https?://.+",
    maxlength: 2000,
    placeholder: t("alert_webhook_none"),
    value: rule?.webhook ?? "",
  });
  const definition = h("p", { class: "pz-hint" });
  const unitOf = h("span", {});
  const describe = () => {
    const metric = metrics.find(({ name }) => name === form.metric.value);
    definition.textContent = t(`alert_means_${form.metric.value}`);
    unitOf.textContent = metric?.unit ?? "";
  };
  const suggest = () => {
    form.threshold.value = String(SUGGESTED[form.metric.value] ?? "");
    form.comparison.value = LOW_IS_BAD.has(form.metric.value) ? "below" : "above";
  };
  form.metric.addEventListener("change", () => {
    describe();
    suggest();
  });
  describe();
  if (rule) form.threshold.value = String(rule.threshold);
  else suggest();
  form.element = h(
    "div",
    { class: "pz-stack" },
    labelled(t("alert_metric"), form.metric),
    definition,
    h(
      "div",
      { class: "pz-form" },
      labelled(t("alert_when"), form.comparison),
      labelled([t("alert_threshold"), " ", unitOf], form.threshold),
      labelled(t("alert_duration"), h("span", { class: "pz-set-with-unit" }, form.duration, form.unit)),
      labelled(t("alert_severity"), form.severity),
    ),
    labelled(t("alert_webhook"), form.webhook),
    h("p", { class: "pz-hint" }, t("alert_webhook_hint")),
  );
  return form;
}

const labelled = (name, field) => h("label", { class: "pz-label" }, h("span", {}, name), field);

function choice(options, value) {
  const node = h(
    "select",
    { class: "pz-field" },
    options.map(([name, label]) => h("option", { value: name }, label)),
  );
  node.value = value;
  return node;
}
