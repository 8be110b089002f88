// Where a job stands: its stage while it runs, its result or its cause afterwards, with the last lines of its log.

import { button, h, icon } from "./dom.js";
import { clock, t } from "./i18n.js";
import { ending, isRunning, progressOf, receipt, stageText } from "./jobs.js";

export function jobLine(job, cancel) {
  if (isRunning(job)) {
    return h(
      "div",
      { class: "pz-job-line", "aria-live": "polite" },
      h("progress", { class: "pz-progress", max: 1, value: progressOf(job) ?? undefined, "aria-label": t("progress") }),
      h(
        "div",
        { class: "pz-row" },
        h("span", { class: "pz-hint pz-figure pz-grow" }, stageText(job)),
        button(t("cancel"), cancel, { kind: "quiet" }),
      ),
    );
  }
  if (job.state === "failed") {
    return h(
      "div",
      { class: "pz-job-line" },
      h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, job.error)),
      logTail(job.log),
    );
  }
  const text = job.state === "succeeded" ? receipt(job) : ending(job);
  const done = job.state === "succeeded";
  return h(
    "p",
    { class: "pz-job-line pz-hint" },
    done ? h("span", { class: "pz-ok" }, icon("check")) : null,
    h("span", { class: "pz-receipt" }, text),
    h("time", { class: "pz-figure" }, clock(job.finished_at ?? job.created_at)),
  );
}

export function logTail(lines) {
  if (!lines?.length) return null;
  return h(
    "details",
    { class: "pz-log" },
    h("summary", {}, t("log_tail", { n: lines.length })),
    h("pre", { tabindex: 0 }, lines.join("\n")),
  );
}
