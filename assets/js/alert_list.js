// Alerts in words: what was measured, of what, against what, and when. Shared by the bell and the settings page.

import { api } from "./api.js";
import { button, h } from "./dom.js";
import { clock, number, seconds, t, timeAgo } from "./i18n.js";
import { attempt } from "./toast.js";

/** metric -> unit, from /api/alert-rules. */
export const alertUnits = (metrics) => new Map(metrics.map((metric) => [metric.name, metric.unit]));

/** A value of a metric with its unit; null is not known. */
export function alertValue(value, unit) {
  if (value === null || value === undefined) return t("alert_unknown");
  const digits = Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : 1;
  if (unit === "s") return seconds(value);
  if (unit === "x") return `×${number(value, digits)}`;
  return `${number(value, digits)}${unit ? ` ${unit}` : ""}`;
}

/** What a value belongs to: a model or a GPU by its name, or this machine. */
export const subjectName = (subject) => (subject === "host" ? t("alert_host") : subject);

/** A duration that the operator chose, in the unit it was chosen in: "10 s", "5 min", "2 h". */
export function splitDuration(s) {
  if (s && s % 3600 === 0) return [s / 3600, "h"];
  return s && s % 60 === 0 ? [s / 60, "min"] : [s, "s"];
}

/** "above 100 for 10 s" */
export function ruleText(rule, unit) {
  if (rule.metric === "engine_down") return t("alert_when_down");
  const threshold = alertValue(rule.threshold, unit);
  const beyond = t(`alert_${rule.comparison}`, { threshold });
  return rule.for_s ? t("alert_for", { beyond, duration: splitDuration(rule.for_s).join(" ") }) : beyond;
}

/** One alert as a list item, with its acknowledgement. */
export function alertItem(alert, units, onchange) {
  const unit = units.get(alert.metric) ?? "";
  const acknowledge = async () => {
    await attempt(() => api.acknowledgeAlert(alert.id));
    onchange();
  };
  return h(
    "li",
    { class: "pz-alert", dataset: { state: alert.state, severity: alert.severity, alert: String(alert.id) } },
    h("span", { class: "pz-alert-state" }, t(`alert_state_${alert.state}`)),
    h(
      "div",
      { class: "pz-grow" },
      h("strong", {}, t(`alert_metric_${alert.metric}`), " · ", subjectName(alert.subject)),
      h("p", { class: "pz-hint" }, alertDetails(alert, unit)),
    ),
    alert.acknowledged_at === null
      ? button(t("alert_acknowledge"), acknowledge, { kind: "quiet" })
      : h("span", { class: "pz-hint", title: clock(alert.acknowledged_at) }, t("alert_seen")),
  );
}

function alertDetails(alert, unit) {
  const known = alert.metric !== "engine_down";
  return [
    known
      ? t("alert_was", { value: alertValue(alert.worst, unit), rule: ruleText({ ...alert, for_s: 0 }, unit) })
      : null,
    t("alert_since", { when: clock(alert.fired_at), ago: timeAgo(alert.fired_at) }),
    alert.resolved_at
      ? t(`alert_by_${alert.resolved_by}`, { after: seconds(alert.resolved_at - alert.fired_at) })
      : null,
    alert.muted ? t("alert_was_muted") : null,
  ]
    .filter(Boolean)
    .join(" · ");
}
