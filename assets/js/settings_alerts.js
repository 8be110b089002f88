// Settings, Alerts: the rules with how each stands now, and the history of what they found.

import { alertItem, alertUnits, alertValue, ruleText, subjectName } from "./alert_list.js";
import { openRuleDialog } from "./alert_rule_dialog.js";
import { api } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { clock, t } from "./i18n.js";
import { live } from "./live.js";
import { attempt, toast } from "./toast.js";

const PAGE = 30;
const REFRESH_MS = 3000;
const MUTE_S = 3600;

export function mount(panel) {
  const view = new AlertSettings(panel);
  view.refresh();
  view.readHistory();
  const timer = setInterval(() => document.hidden || view.refresh(), REFRESH_MS);
  const stop = live.subscribe("alerts", () => {
    view.refresh();
    view.readHistory();
  });
  return {
    destroy() {
      clearInterval(timer);
      stop();
    },
  };
}

class AlertSettings {
  #metrics = [];
  #units = new Map();
  #drawn = "";
  #next = null;

  constructor(panel) {
    this.rules = h("ul", { class: "pz-rules" }, h("li", { class: "pz-empty" }, t("set_reading")));
    this.history = h("ul", { class: "pz-alert-list" });
    this.more = button(t("alert_more"), () => this.readHistory(true), { hidden: true });
    fill(
      panel,
      h(
        "div",
        { class: "pz-row pz-set-head" },
        h("h2", { class: "pz-grow" }, t("alert_rules")),
        button(t("alert_new_rule"), () => this.#edit(null), { iconName: "plus" }),
      ),
      h("p", { class: "pz-hint" }, t("alert_rules_hint")),
      this.rules,
      h("h2", { class: "pz-section" }, t("alert_history")),
      this.history,
      this.more,
    );
  }

  async refresh() {
    let found;
    try {
      found = await api.alertRules();
    } catch (error) {
      if (error.status === undefined) throw error;
      this.#drawn = "";
      fill(this.rules, h("li", { class: "pz-empty" }, error.status === 0 ? t("server_unreachable") : error.message));
      return;
    }
    this.#metrics = found.metrics;
    this.#units = alertUnits(found.metrics);
    const drawn = JSON.stringify(found.rules);
    if (drawn === this.#drawn) return; // focus and hover stay
    this.#drawn = drawn;
    const focused = document.activeElement?.dataset?.act;
    const rows = found.rules.map((rule) => this.#row(rule));
    fill(this.rules, rows.length ? rows : h("li", { class: "pz-empty" }, t("alert_no_rules")));
    if (focused) this.rules.querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
  }

  async readHistory(more = false) {
    const page = await attempt(() => api.alerts(PAGE, more ? this.#next : null));
    if (!page) return;
    this.#next = page.next_before;
    this.more.hidden = page.next_before === null;
    if (!this.#units.size) await this.refresh();
    const items = page.alerts.map((alert) => alertItem(alert, this.#units, () => this.readHistory()));
    if (more) this.history.append(...items);
    else fill(this.history, items.length ? items : h("li", { class: "pz-empty" }, t("alert_none")));
  }

  #row(rule) {
    const unit = this.#units.get(rule.metric) ?? "";
    const muted = rule.muted_until !== null && rule.muted_until > Date.now() / 1000;
    return h(
      "li",
      { class: "pz-card pz-rule", dataset: { rule: rule.id, enabled: String(rule.enabled) } },
      h(
        "div",
        { class: "pz-grow" },
        h("h3", { title: t(`alert_means_${rule.metric}`) }, t(`alert_metric_${rule.metric}`)),
        h(
          "p",
          { class: "pz-rule-text" },
          h("span", {}, ruleText(rule, unit)),
          h(
            "span",
            { class: "pz-severity", dataset: { severity: rule.severity } },
            t(`alert_severity_${rule.severity}`),
          ),
          rule.webhook ? h("span", { class: "pz-hint" }, t("alert_calls", { host: hostOf(rule.webhook) })) : null,
          muted ? h("span", { class: "pz-hint" }, t("alert_muted_until", { when: clock(rule.muted_until) })) : null,
        ),
        h("p", { class: "pz-hint" }, rule.enabled ? standing(rule, unit) : t("alert_disabled")),
      ),
      this.#buttons(rule, muted),
    );
  }

  #buttons(rule, muted) {
    const act = (name, label, onclick, props = {}) =>
      button(label, onclick, { kind: "quiet", "data-act": `${name} ${rule.id}`, ...props });
    const until = muted ? null : Math.ceil(Date.now() / 1000) + MUTE_S;
    return h(
      "div",
      { class: "pz-actions" },
      act("enable", t(rule.enabled ? "alert_disable" : "alert_enable"), () =>
        this.#change(rule, { enabled: !rule.enabled }),
      ),
      rule.enabled
        ? act("mute", t(muted ? "alert_unmute" : "alert_mute"), () => this.#change(rule, { muted_until: until }), {
            title: t("alert_mute_hint"),
          })
        : null,
      rule.webhook ? act("test", t("alert_test"), (event) => this.#test(rule, event.currentTarget)) : null,
      act("edit", t("edit"), () => this.#edit(rule)),
      act("delete", t("delete"), () => this.#delete(rule)),
    );
  }

  #edit(rule) {
    openRuleDialog(rule, this.#metrics, () => this.refresh());
  }

  async #change(rule, changes) {
    await attempt(() => api.changeAlertRule(rule.id, rule.version, changes));
    this.refresh();
  }

  async #delete(rule) {
    const name = t(`alert_metric_${rule.metric}`);
    if (!(await confirmDialog(t("alert_delete_title"), t("alert_delete_text", { name }), t("delete")))) return;
    await attempt(() => api.deleteAlertRule(rule.id, rule.version));
    this.refresh();
  }

  async #test(rule, pressed) {
    pressed.disabled = true;
    const result = await attempt(() => api.testAlertRule(rule.id));
    pressed.disabled = false;
    if (result?.delivered) toast(t("alert_test_arrived", { status: result.status }), "ok");
    else if (result) toast(t("alert_test_failed", { error: result.error }), "error");
  }
}

function hostOf(url) {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

function standing(rule, unit) {
  if (!rule.now.length) return t("alert_nothing_to_watch");
  const one = ({ subject, state, value }) =>
    h(
      "span",
      { class: "pz-standing", dataset: { state } },
      rule.metric === "engine_down"
        ? `${subjectName(subject)}: ${t(value ? "alert_down" : "alert_up")}`
        : `${subjectName(subject)}: ${alertValue(value, unit)}`,
      state === "pending" || state === "firing" ? [" ", icon("warning"), ` ${t(`alert_state_${state}`)}`] : null,
    );
  return rule.now.map(one);
}
