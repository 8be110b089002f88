// One job as a card: what it is, how it stands, what came of it, and the end of its log. The same wherever a job is shown.

import { fill, h } from "./dom.js";
import { clock, seconds, t, word } from "./i18n.js";
import { createJobLine, logTail } from "./job_line.js";
import { jobOutcome } from "./job_outcome.js";
import { cancelJob, isRunning, jobTitle } from "./jobs.js";

/** {element, update(job)}. What is open in it stays open. */
export function createJobCard(job) {
  const line = createJobLine(() => cancelJob(job.id));
  const chip = h("span", { class: "pz-chip pz-job-chip" });
  const took = h("span", { class: "pz-hint pz-figure" });
  const outcome = h("div", { class: "pz-job-outcome" });
  const log = h("div");
  const element = h(
    "li",
    { class: "pz-card pz-job", dataset: { job: job.id, kind: job.kind } },
    h("div", { class: "pz-row pz-job-head" }, h("strong", { class: "pz-grow" }, jobTitle(job)), took, chip),
    line.element,
    outcome,
    log,
  );
  let shown = "";
  let lines = -1;
  function update(now) {
    element.dataset.state = now.state;
    chip.dataset.state = CHIPS[now.state] ?? now.state;
    chip.textContent = word("mod_jobstate", now.state);
    took.textContent = isRunning(now)
      ? t("mod_since", { time: clock(now.started_at ?? now.created_at) })
      : t("mod_took", { time: duration(now) });
    line.update(now);
    // a job that tells of its work as it goes (a training's curve) is drawn again with every line of its log
    const told = `${now.state}/${now.kind === "train-drafter" ? now.log.length : 0}`;
    if (told !== shown) fill(outcome, jobOutcome(now));
    shown = told;
    if (now.log.length === lines && isRunning(now)) return;
    lines = now.log.length;
    const open = log.querySelector("details")?.open ?? false;
    fill(log, logTail(now.log));
    if (open && log.firstChild) log.firstChild.open = true;
  }
  update(job);
  return { element, update };
}

const CHIPS = { running: "loading", queued: "loading", succeeded: "ready" };

const duration = (job) => (job.started_at && job.finished_at ? seconds(job.finished_at - job.started_at) : "–");
