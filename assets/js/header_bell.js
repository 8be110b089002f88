// The bell of the header: how many alerts fire or were not seen, a notice when one begins, and the list behind it.

import { alertItem, alertUnits, subjectName } from "./alert_list.js";
import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { live } from "./live.js";
import { attempt, toast } from "./toast.js";

const SHOWN = 20;

export function createBell() {
  const badge = h("span", { class: "pz-badge pz-figure", hidden: true });
  const element = h(
    "button",
    { type: "button", class: "pz-icon-button pz-bell", onclick: openAlerts },
    icon("bell"),
    badge,
  );
  live.subscribe("alerts", tellOfNew);
  function update(counts) {
    const { firing = 0, unacknowledged = 0 } = counts ?? {};
    const label = t("alert_bell", { firing, unseen: unacknowledged });
    element.title = label;
    element.setAttribute("aria-label", label);
    element.dataset.firing = String(firing > 0);
    badge.hidden = firing + unacknowledged === 0;
    badge.textContent = String(Math.max(firing, unacknowledged));
  }
  update(null);
  return { element, update };
}

/** What the state chip does not say already. */
function tellOfNew(alert) {
  if (alert.state !== "firing" || alert.muted || alert.acknowledged_at !== null || alert.metric === "engine_down")
    return;
  toast(t("alert_toast", { metric: t(`alert_metric_${alert.metric}`), subject: subjectName(alert.subject) }), "error");
}

function openAlerts() {
  const list = h("ul", { class: "pz-alert-list" }, h("li", { class: "pz-empty" }, t("alert_reading")));
  async function draw() {
    const found = await attempt(() => Promise.all([api.alerts(SHOWN), api.alertRules()]));
    if (!found) return fill(list, h("li", { class: "pz-empty" }, t("server_unreachable")));
    const units = alertUnits(found[1].metrics);
    const alerts = found[0].alerts;
    all.hidden = !alerts.some((alert) => alert.acknowledged_at === null);
    return fill(
      list,
      alerts.length
        ? alerts.map((alert) => alertItem(alert, units, draw))
        : h("li", { class: "pz-empty" }, t("alert_none")),
    );
  }
  const all = button(t("alert_seen_all"), async () => {
    await attempt(() => api.acknowledgeAlerts());
    draw();
  });
  all.hidden = true;
  const rules = h("a", { class: "pz-button pz-secondary", href: "/settings?tab=alerts" }, t("alert_to_rules"));
  const stop = live.subscribe("alerts", draw);
  openDialog({ title: t("alert_title"), body: list, actions: [all, rules], onclose: stop });
  draw();
}
