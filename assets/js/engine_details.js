// What became of the operator's wishes in a loaded engine, and what was lost with one that failed: nothing is silent.

import { button, h, icon } from "./dom.js";
import { clock, number, t, word } from "./i18n.js";
import { logTail } from "./job_line.js";
import { toast } from "./toast.js";

const SHOWN_LOST = 8;

/** Of a ready engine: exactness, each setting as it was asked for and as it is, and its log. */
export function engineFacts(engine) {
  const settings = engine.effective_settings ?? [];
  return h(
    "details",
    { class: "pz-log pz-engine-facts" },
    h(
      "summary",
      {},
      t("engine_summary", {
        device: engine.device_name || engine.device,
        dtype: engine.dtype,
        context: number(engine.max_model_len),
      }),
    ),
    h("p", { class: "pz-hint" }, `${t("exactness")}: ${word("exactness", engine.exactness)}. ${engine.exactness_reason ?? ""}`),
    h("p", {}, h("strong", {}, t("mod_effective"))),
    settings.length ? settingsTable(settings) : h("p", { class: "pz-hint" }, t("mod_effective_none")),
    logTail(engine.log_tail),
  );
}

const settingsTable = (settings) =>
  h(
    "div",
    { class: "pz-table-wrap", tabindex: 0 },
    h(
      "table",
      { class: "pz-table pz-settings" },
      h("thead", {}, h("tr", {}, ["mod_setting", "mod_requested", "mod_effective_value", "mod_reason"].map((key) => h("th", {}, t(key))))),
      h(
        "tbody",
        {},
        settings.map((each) =>
          h("tr", {}, h("td", {}, h("code", {}, each.name)), h("td", {}, each.requested), h("td", {}, each.effective), h("td", { class: "pz-reason" }, each.reason)),
        ),
      ),
    ),
  );

/** Of an engine that ended by itself: why, which requests were lost, the end of its log, and a report to copy. */
export function crashReport(engine) {
  const lost = engine.lost_requests;
  return h(
    "div",
    { class: "pz-stack pz-crash" },
    h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, engine.error)),
    h(
      "p",
      { class: "pz-hint" },
      lost.length ? t("mod_lost", { n: lost.length, ids: lost.slice(0, SHOWN_LOST).join(", ") + (lost.length > SHOWN_LOST ? "…" : "") }) : t("mod_lost_none"),
      ` ${t("mod_not_restarted")}`,
    ),
    logTail(engine.log_tail),
    h("div", {}, button(t("mod_copy_report"), () => copy(engine), { kind: "quiet", iconName: "copy" })),
  );
}

async function copy(engine) {
  try {
    await navigator.clipboard.writeText(report(engine));
    toast(t("mod_report_copied"), "ok");
  } catch {
    toast(t("mod_report_not_copied"), "error");
  }
}

/** In English, whatever the page speaks: it goes to whoever can help. */
export function report(engine) {
  const options = Object.entries(engine.options).filter(([, value]) => value !== null && value !== "");
  return [
    `Pizarra: the engine ${engine.id} of ${engine.model_id} failed (${engine.failure_kind}), started ${clock(engine.started_at)}`,
    engine.error,
    `lost requests: ${engine.lost_requests.join(", ") || "none"}`,
    `options: ${options.map(([name, value]) => `${name}=${value}`).join(" ")}`,
    `device: ${engine.device_name ?? "not known"}, ${engine.dtype ?? "not known"}`,
    "last log lines:",
    ...engine.log_tail,
  ].join("\n");
}
