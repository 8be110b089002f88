// The race: plain decoding against decoding with drafts, one run after the other, then side by side on one clock.
// Owns the pane: form, progress, result, earlier races. Invariant: what is shown of a race is its job's, so that a reload
// or a second tab shows the same.

import { api } from "./api.js";
import { watchEngine } from "./chalkboard_engine.js";
import { promptForm } from "./chalkboard_form.js";
import { button, fill, h, icon } from "./dom.js";
import { clock, number, t, word } from "./i18n.js";
import { allJobs, cancelJob, isRunning, progressOf, watchJobs } from "./jobs.js";
import { raceResult } from "./race_result.js";

const LISTED = 50; // earlier races, of all models
const SHOWN = 10;

export function mount(element) {
  const problem = h("div", { "aria-live": "polite" });
  const stage = h("div", { class: "pz-race-stage", "aria-live": "polite" });
  const earlier = h("div", {});
  const reason = h("p", { class: "pz-race-reason", role: "status" });
  const form = promptForm({
    name: "race",
    plainChoice: false,
    maxTokens: 512,
    extra: [
      ["repeats", t("race_repeats"), t("race_repeats_hint"), { min: 1, max: 20, value: 5 }],
      ["warm_up", t("race_warm_up"), t("race_warm_up_hint"), { min: 1, max: 5, value: 1 }],
    ],
    startLabel: t("race_start"),
    startIcon: "play",
    stopLabel: t("cancel"),
    start,
    stop: () => running && cancelJob(running.id),
  });
  fill(
    element,
    h(
      "div",
      { class: "pz-board-page" },
      h(
        "div",
        { class: "pz-card pz-board-side" },
        h("p", { class: "pz-hint" }, t("race_explained")),
        reason,
        form.element,
      ),
      h(
        "div",
        { class: "pz-board-main" },
        problem,
        h("div", { class: "pz-card pz-race-card" }, stage),
        h("section", { class: "pz-card" }, h("h2", {}, t("race_earlier")), earlier),
      ),
    ),
  );

  let engine = null;
  let running = null; // the job
  let shown = null; // {id, result: {element, destroy}}
  let ended = []; // earlier races of this model, newest first
  let toldEnd = false; // the stage says how the last race ended without a result, until something is asked for
  let destroyed = false;

  const fail = (text) => fill(problem, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text)));
  const said = (error) => (error.status === 0 ? t("server_unreachable") : error.message);

  async function start(wish) {
    if (!engine) return;
    fill(problem);
    form.setBusy(true);
    const { chat, prompt, k, proposer, seed, ...rest } = wish;
    const body = {
      ...rest,
      ...(chat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      ...(proposer ? { proposer } : {}),
      ...(k ? { num_speculative_tokens: k } : {}),
      ...(seed === null ? {} : { seed }),
    };
    try {
      const { job_id: id } = await api.race(engine.id, body);
      running = { id, stage: "", done: 0, total: 0 };
      paint();
      look();
    } catch (error) {
      fail(said(error));
      form.setBusy(false);
    }
  }

  /** The newest state of this model's races. */
  function look() {
    if (destroyed || !engine) return;
    const mine = allJobs().filter((job) => job.kind === "race" && job.subject === engine.model_id);
    const now = mine.find(isRunning);
    if (now) {
      running = now;
      form.setBusy(true);
      return paint();
    }
    const known = running && mine.find((job) => job.id === running.id);
    if (running && !known) return undefined; // it has been started, and is not told of yet
    if (running) finish(known);
    return undefined;
  }

  function finish(job) {
    running = null;
    form.setBusy(false);
    if (job.state === "succeeded") open(job);
    else {
      shown = null;
      toldEnd = true;
      fill(stage, h("p", { class: "pz-hint" }, word("jobstate", job.state)));
      if (job.error) fail(t("race_failed", { error: job.error }));
    }
    list();
  }

  function paint() {
    if (!running) return;
    toldEnd = false;
    if (shown) {
      shown.result.destroy();
      shown = null;
      paintList();
    }
    const { stage: name, done, total, message } = running;
    const text =
      name === "race_waiting" ? t("race_waiting_for", { n: message }) : name ? word("stage", name) : t("waiting");
    fill(
      stage,
      h("h2", {}, t("race_running")),
      h("progress", {
        class: "pz-progress",
        max: 1,
        value: progressOf(running) ?? undefined,
        "aria-label": t("progress"),
      }),
      h(
        "div",
        { class: "pz-race-pips", "aria-hidden": "true" },
        Array.from({ length: total }, (_, place) =>
          h("i", { "data-is": place < done ? "done" : place === done ? "now" : "next" }),
        ),
      ),
      h("p", { class: "pz-hint pz-figure" }, total ? `${number(done)} / ${number(total)} · ${text}` : text),
    );
  }

  function open(job) {
    shown?.result.destroy();
    toldEnd = false;
    shown = { id: job.id, result: raceResult(job.result) };
    const { prompt, chat } = job.result;
    fill(
      stage,
      h(
        "div",
        { class: "pz-race-asked" },
        h("q", {}, prompt.length > 160 ? `${prompt.slice(0, 160)}…` : prompt),
        h(
          "span",
          { class: "pz-row" },
          h("time", { class: "pz-hint pz-figure" }, clock(job.finished_at)),
          button(t("race_again"), () => form.setPrompt(prompt, chat), { kind: "quiet" }),
        ),
      ),
      shown.result.element,
    );
    paintList();
  }

  async function list() {
    const mine = engine;
    try {
      const jobs = await api.races(LISTED);
      if (destroyed || engine !== mine) return;
      const isMine = (job) => job.kind === "race" && (!mine || job.subject === mine.model_id); // with no model: all
      ended = jobs.filter((job) => isMine(job) && job.state === "succeeded");
      if (!shown && !running && !toldEnd && ended.length) return open(ended[0]);
      paintList();
    } catch (error) {
      fail(said(error));
    }
  }

  function paintList() {
    const entry = (job) => {
      const { speedup, identity, prompt } = job.result;
      const current = job.id === shown?.id;
      return h(
        "li",
        { class: "pz-race-earlier", "aria-current": current ? "true" : null },
        h("time", { class: "pz-hint pz-figure" }, clock(job.finished_at)),
        h("span", { class: "pz-race-prompt" }, prompt),
        h("span", { class: "pz-figure" }, `${number(speedup.value, 2)}×`),
        h("span", { class: "pz-hint" }, t(`race_same_${identity.verdict}`)),
        button(t("race_show"), () => open(job), { kind: "quiet", disabled: current }),
      );
    };
    fill(
      earlier,
      ended.length
        ? h("ol", { class: "pz-race-list" }, ended.slice(0, SHOWN).map(entry))
        : h("p", { class: "pz-empty" }, t("race_earlier_none")),
    );
  }

  /** Why no race can be started, and what to do where none was run. */
  function welcome() {
    const model = engine?.model_id;
    if (!engine) fill(reason, t("no_model_loaded"), " ", h("a", { href: "/models" }, t("see_models")));
    else if (!engine.speculation?.proposers.length) fill(reason, t("race_no_drafts", { model }));
    else if (!engine.speculation.enabled) fill(reason, t("race_off", { model }));
    else fill(reason);
    if (!running && !shown && !toldEnd) fill(stage, h("p", { class: "pz-empty" }, t("race_empty")));
  }

  const stopWatch = watchEngine((found) => {
    if (found?.model_id !== engine?.model_id) {
      shown?.result.destroy();
      shown = running = null;
      toldEnd = false;
      form.setBusy(false);
    }
    engine = found;
    form.setEngine(engine?.speculation?.proposers.length && engine.speculation.enabled ? engine : null);
    welcome();
    look();
    list();
  });
  welcome();
  paintList();
  const stopJobs = watchJobs(look);
  return {
    destroy() {
      destroyed = true;
      stopWatch();
      stopJobs();
      shown?.result.destroy();
    },
  };
}
