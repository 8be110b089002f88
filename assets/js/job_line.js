// Where a job stands, in a line or two: its stage, speed and time to go while it runs; its result or cause afterwards.

import { button, fill, h, icon, setText } from "./dom.js";
import { clock, t, word } from "./i18n.js";
import { ending, isRunning, paceText, progressOf, receipt, stageText } from "./jobs.js";

/** {element, update(job)}: brought up to date in place, so that focus stays where it is. */
export function createJobLine(cancel) {
  const bar = h("progress", { class: "pz-progress", max: 1, "aria-label": t("progress") });
  const stage = h("span", { class: "pz-hint pz-figure pz-grow" });
  const pace = h("span", { class: "pz-hint pz-figure" });
  const stop = button(t("cancel"), () => cancel(), { kind: "quiet" });
  const running = h("div", { class: "pz-job-line" }, bar, h("div", { class: "pz-row pz-job-now" }, stage, pace, stop));
  const element = h("div", { class: "pz-job-state", "aria-live": "polite" });
  let shown = "";
  function update(job) {
    const now = isRunning(job) ? "running" : job.state;
    if (now !== shown) fill(element, now === "running" ? running : ended(job));
    shown = now;
    if (now !== "running") return;
    const progress = progressOf(job);
    if (progress === null) bar.removeAttribute("value");
    else bar.value = progress;
    stop.hidden = job.kind === "unload"; // an unload that has begun cannot be taken back
    setText(stage, stageText(job));
    setText(pace, paceText(job));
  }
  return { element, update };
}

/** The line of a job as it is now. */
export function jobLine(job, cancel) {
  const line = createJobLine(cancel);
  line.update(job);
  return line.element;
}

function ended(job) {
  if (job.kind === "load" && job.result?.kind) return null; // failed, and told in full: see failed_load.js
  if (job.state === "failed") return h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, job.error));
  const done = job.state === "succeeded";
  return h(
    "p",
    { class: "pz-job-line pz-hint" },
    done ? h("span", { class: "pz-ok" }, icon("check")) : null,
    h("span", { class: "pz-receipt" }, unlessChip(job, done ? receipt(job) : ending(job))),
    h("time", { class: "pz-figure" }, clock(job.finished_at ?? job.created_at)),
  );
}

/** What the chip beside it says already is not said twice. */
const unlessChip = (job, text) => (text === word("mod_jobstate", job.state) || text === word("jobstate", job.state) ? "" : text);

export function logTail(lines) {
  if (!lines?.length) return null;
  return h(
    "details",
    { class: "pz-log" },
    h("summary", {}, t("log_tail", { n: lines.length })),
    h("pre", { tabindex: 0 }, lines.join("\n")),
  );
}
