// Jobs as the server tells of them. Owns the newest state of each; actions start them.
// Invariants: what is shown comes from the server, so a reload or a second tab shows the same; the list and the feed are
// joined by the feed's numbers, so that nothing between the two is missed and nothing older undoes what was heard.

import { api } from "./api.js";
import { bytes, number, seconds, t, word } from "./i18n.js";
import { live } from "./live.js";
import { attempt, toast } from "./toast.js";

const ENDED = new Set(["succeeded", "failed", "cancelled", "interrupted"]);
const AWAITED = "pizarra.load_when_pulled";
const PAGE = 30;
const jobs = new Map();
const heard = new Map(); // job -> number of the message that it was last heard of in
const listeners = new Set();
const unsaid = []; // failures that wait until it is known whether a dialog shows them
let numWatched = 0;

export const isRunning = (job) => !ENDED.has(job.state);

/** Hear of every change, and once now with all that is known. */
export function watchJobs(listener) {
  listeners.add(listener);
  if (jobs.size) listener();
  return () => listeners.delete(listener);
}

export function allJobs() {
  return [...jobs.values()].sort((a, b) => b.created_at - a.created_at);
}

export const latestJob = (subject, kind = null) =>
  allJobs().find((job) => job.subject === subject && (kind === null || job.kind === kind));

function changed() {
  for (const listener of listeners) listener();
}

let nextBefore = null;
let started = null;

async function refresh() {
  const page = await api.jobs(PAGE);
  for (const job of page.jobs) if ((heard.get(job.id) ?? 0) <= page.live_seq) jobs.set(job.id, job);
  if (started === null) nextBefore = page.next_before;
  started ??= live.subscribe("jobs", take, page.live_seq);
  changed();
}

/** Whether older jobs are kept than those that are known here. */
export const hasOlderJobs = () => nextBefore !== null;

export async function fetchOlderJobs() {
  const page = await api.jobs(PAGE, nextBefore);
  for (const job of page.jobs) if (!jobs.has(job.id)) jobs.set(job.id, job);
  nextBefore = page.next_before;
  changed();
}

function take(job, message) {
  const before = jobs.get(job.id);
  jobs.set(job.id, job);
  heard.set(job.id, message.seq);
  if (ENDED.has(job.state) && (!before || isRunning(before))) announce(job);
  changed();
}

function announce(job) {
  if (job.state === "failed") {
    if (job.kind === "pull") sessionStorage.removeItem(AWAITED);
    if (numWatched) unsaid.push(job);
    else sayFailed(job);
  } else if (job.state === "succeeded") {
    if (job.kind === "pull") loadIfAwaited(job.subject);
    toast(`${jobTitle(job)}: ${receipt(job)}`, job.result?.state === "failed" ? "error" : "ok");
  }
}

const sayFailed = (job) => toast(t("job_failed", { job: jobTitle(job), error: job.error }), "error");

/** Start a job and wait until it has ended or `enough(job)`; `onchange(job)` hears of all before. A failure is `shows(job)`'s to tell: false leaves it to a notice. */
export async function startAndWatch(start, { enough, onchange, shows }) {
  numWatched += 1;
  let own = null;
  try {
    own = await until((await start()).job_id, enough, onchange);
    return own;
  } finally {
    numWatched -= 1;
    for (const job of unsaid.splice(0)) if (job.id !== own?.id || !shows(job)) sayFailed(job);
  }
}

function until(id, enough, onchange) {
  return new Promise((resolve) => {
    const look = () => {
      const job = jobs.get(id);
      if (!job) return;
      if (isRunning(job) && !enough(job)) return onchange(job);
      listeners.delete(look);
      resolve(job);
    };
    watchJobs(look);
    look();
  });
}

export const jobTitle = (job) => `${word("job", job.kind)} ${job.subject}`;

/** What a finished job has to say; for an unload: the memory that was seen to come back. */
export function receipt(job) {
  const result = job.result ?? {};
  if (job.kind === "unload" && result.freed_bytes !== undefined) {
    return t(result.lost_requests?.length || result.forced ? "receipt_forced" : "receipt", {
      freed: bytes(result.freed_bytes),
      expected: bytes(result.expected_bytes),
      seconds: number(result.seconds, 1),
    });
  }
  // what one waited for, the start of the process included: the same figure as in the list of events
  if (job.kind === "load" && job.started_at && job.finished_at)
    return t("loaded_in", { seconds: number(job.finished_at - job.started_at, 1) });
  if (job.kind === "race" && result.speedup)
    return t(`race_verdict_${result.speedup.verdict}`, { value: number(result.speedup.value, 2) });
  if (job.kind === "selftest" && result.state) return word("verdict", result.state);
  if (job.kind === "quantize" && result.model_id) return t("made", { model: result.model_id });
  if (job.kind === "train-drafter" && result.drafter_id) {
    if (!result.path) return t("mod_trained_none", { drafter: result.drafter_id });
    return t(result.finished ? "mod_trained" : "mod_trained_part", { drafter: result.drafter_id });
  }
  if (job.kind === "benchmark" && result.rows) return headline(result.rows);
  return t("job_done");
}

/** The one figure of a benchmark that fits into a line. */
function headline(rows) {
  const decoding = rows.filter((row) => row.name === "decode_tokens_per_s" && row.batch === 1 && row.median !== null);
  const best = decoding.sort((a, b) => b.median - a.median)[0];
  return best ? t("mod_bench_headline", { rate: number(best.median, 1) }) : t("job_done");
}

/** How a job ended that did not succeed: work that keeps a checkpoint says that it goes on from there. */
export const ending = (job) =>
  ["quantize", "train-drafter"].includes(job.kind) && job.state === "cancelled"
    ? t("quantize_stopped")
    : job.state === "failed"
      ? (job.error ?? word("jobstate", job.state))
      : word("jobstate", job.state);

/** 0..1, or null where the stage does not count. */
export const progressOf = (job) => (job.total > 0 ? Math.min(1, job.done / job.total) : null);

export function stageText(job) {
  const amount =
    job.total > 0
      ? job.unit === "bytes"
        ? `${bytes(job.done)} / ${bytes(job.total)}`
        : job.unit === "seconds"
          ? t("mod_seconds_left", { n: job.total - job.done })
          : `${number(job.done)} / ${number(job.total)}`
      : "";
  if (job.stage === "drain") return [word("stage", job.stage), amount].filter(Boolean).join(" · ");
  return [job.stage && word("stage", job.stage), amount, job.message].filter(Boolean).join(" · ") || t("waiting");
}

/** How fast a running job goes and how long it has yet to go, as far as that is known. */
export function paceText(job) {
  if (job.unit === "seconds") return ""; // it counts down itself
  const speed = job.rate_per_s === null || job.rate_per_s === undefined ? null : speedText(job);
  const left = !job.eta_s || job.eta_s < 0.5 ? null : t("mod_eta", { time: seconds(Math.ceil(job.eta_s)) });
  return [speed, left].filter(Boolean).join(" · ");
}

const speedText = (job) =>
  job.unit === "bytes"
    ? `${bytes(job.rate_per_s)}/s`
    : job.unit === "steps" && job.rate_per_s >= 0.1
      ? t("mod_steps_per_s", { n: number(job.rate_per_s, 1) })
      : null;

export const startLoad = (id, options = {}, more = {}) => attempt(() => api.load(id, options, more));
export const startUnload = (id, force = false, more = {}) => attempt(() => api.unload(id, force, more));
export const cancelJob = (id) => attempt(() => api.cancelJob(id));

/** Load a model that may still have to be fetched. A reload in between does not lose the wish. */
export async function bringUp(id) {
  const models = await attempt(() => api.models());
  if (!models) return;
  if (models.find((model) => model.id === id)?.on_disk) await startLoad(id, {}, { profile: "default" });
  else {
    sessionStorage.setItem(AWAITED, id);
    await attempt(() => api.pull({ source: id }));
  }
}

function loadIfAwaited(id) {
  if (sessionStorage.getItem(AWAITED) !== id) return;
  sessionStorage.removeItem(AWAITED);
  startLoad(id);
}

/** The running job that brings a model up: its download, then its load. */
export const bringingUp = (id) => latestBringUp(id, isRunning);

/** The newest download or load of a model that is as wished. */
export const latestBringUp = (id, wished = () => true) =>
  allJobs().find((job) => job.subject === id && (job.kind === "pull" || job.kind === "load") && wished(job));

/** The list first, then the feed from there on; where the server cannot be reached yet, at its next reconnection. */
live.onReconnect(() => attempt(refresh));
attempt(refresh);
