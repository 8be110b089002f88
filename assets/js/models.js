// The models page: what is here, what can be fetched, what engines gave back, and the work under way and done.

import { api } from "./api.js";
import { button, fill, h } from "./dom.js";
import { engineFacts } from "./engine_details.js";
import { t } from "./i18n.js";
import { idleLine } from "./idle_line.js";
import { JobList } from "./job_list.js";
import { allJobs, cancelJob, latestJob, watchJobs } from "./jobs.js";
import { createJobLine } from "./job_line.js";
import { live } from "./live.js";
import { modelCard, showsFit } from "./model_card.js";
import { openAddDialog } from "./pull_dialog.js";
import { mountReceipts } from "./receipts.js";
import { speculationLine } from "./speculation_line.js";
import { attempt } from "./toast.js";

class Models {
  #rows = [];
  #engines = [];
  #differences = new Map(); // model -> how the loaded engine differs from the profile that loads take
  #fetching = false;
  #due = null; // what the next fetch is for
  #wanted = []; // words of the filter

  constructor(element) {
    this.here = h("div", { class: "pz-model-grid" });
    this.catalogue = h("div", { class: "pz-model-grid" });
    this.jobs = new JobList();
    const receipts = h("ul", { class: "pz-card pz-receipts" });
    this.filter = h("input", {
      class: "pz-field pz-model-filter",
      type: "search",
      placeholder: t("filter_models"),
      "aria-label": t("filter_models"),
      spellcheck: "false",
      autocomplete: "off",
    });
    this.filter.addEventListener("input", () => {
      this.#wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.#draw();
    });
    fill(
      element,
      h(
        "div",
        { class: "pz-page-head pz-row" },
        h(
          "div",
          { class: "pz-grow" },
          h("h1", {}, t("nav_models")),
          h("p", { class: "pz-sentence" }, t("models_intro")),
        ),
        this.filter,
        button(t("add_model"), () => openAddDialog(), { iconName: "plus" }),
      ),
      h("h2", { class: "pz-section" }, t("on_this_machine")),
      this.here,
      h("h2", { class: "pz-section" }, t("catalogue")),
      this.catalogue,
      h("h2", { class: "pz-section" }, t("mod_receipts")),
      receipts,
      this.jobs.element,
    );
    mountReceipts(receipts);
    const refresh = () => attempt(() => this.#fetch("all"));
    let states = "";
    watchJobs(() => {
      const now = JSON.stringify(allJobs().map((job) => [job.id, job.state]));
      if (now !== states) refresh();
      states = now;
      this.#draw();
    });
    let engines = "";
    let times = "";
    live.subscribe("header", (state) => {
      const { state: drafting, gain } = state.speculation;
      const told = [drafting, gain?.toFixed(1)];
      const now = JSON.stringify([told, state.engines.map((engine) => [engine.id, engine.state, engine.selftest])]);
      if (now !== engines) refresh();
      engines = now;
      const timesNow = JSON.stringify(state.engines.map((engine) => engine.idle_unload_at));
      if (timesNow !== times) attempt(() => this.#fetch("times"));
      times = timesNow;
    });
    live.onReconnect(refresh);
    refresh();
  }

  /** What is to be brought up to date: "all", or the "times" at which engines go by themselves. One fetch at a time, so
   * that no older answer comes behind a newer one; what was asked for meanwhile is one more fetch afterwards. */
  async #fetch(what) {
    if (this.#due !== "all") this.#due = what;
    if (this.#fetching) return;
    this.#fetching = true;
    try {
      while (this.#due) {
        const all = this.#due === "all";
        this.#due = null;
        await (all ? this.#fetchAll() : this.#fetchTimes());
      }
    } finally {
      this.#fetching = false;
    }
  }

  async #fetchAll() {
    [this.#rows, this.#engines] = await Promise.all([api.models(), api.engines()]);
    await this.#compare();
    this.#draw();
  }

  async #fetchTimes() {
    this.#engines = await api.engines();
    for (const node of this.here.children) {
      const engine = this.#engines.find((each) => each.model_id === node.dataset.model && each.state === "ready");
      if (engine) node.parts?.idle.update(engine);
    }
  }

  #draw() {
    const context = (row) => ({
      job: latestJob(row.id),
      engine: this.#engines.find((engine) => engine.id === row.engine_id),
      differences: this.#differences.get(row.id),
      refresh: () => attempt(() => this.#fetch("all")),
    });
    const isHere = (row) =>
      row.on_disk || ["downloading", "loading", "loaded", "unloading", "failed", "broken"].includes(row.state);
    const rows = this.#rows.filter((row) => fits(row, this.#wanted));
    const none = this.#wanted.length ? t("no_model_fits") : null;
    sync(this.here, rows.filter(isHere), context, none ?? t("nothing_on_disk"));
    sync(this.catalogue, rows.filter((row) => !isHere(row)), context, none ?? t("catalogue_empty"));
    this.jobs.draw();
  }

  /** How loaded engines differ from what a load would take now; where that cannot be read, nothing is said of it. */
  async #compare() {
    const loaded = this.#engines.filter((engine) => engine.state === "ready");
    const found = await Promise.all(loaded.map((engine) => api.profiles(engine.model_id).catch(() => null)));
    this.#differences = new Map(loaded.map((engine, i) => [engine.model_id, found[i]?.reload_to_apply ?? []]));
  }
}

/** Whether a row tells of all these words. */
function fits(row, words) {
  const said = [row.id, row.name, row.architecture, row.quantization, row.format, row.license].join(" ").toLowerCase();
  return words.every((word) => said.includes(word));
}

/** Bring the cards up to date; a card whose data did not change keeps its node, with whatever is open in it. */
function sync(parent, rows, contextOf, emptyText) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const nodes = rows.map((row) => {
    const context = contextOf(row);
    const { job, engine } = context;
    const key = JSON.stringify([
      showsFit(row) ? row : { ...row, fit: null }, // what is free changes all the time
      job && [job.id, job.state],
      context.differences,
      engine && [engine.state, settingsKey(engine), engine.speculation?.proposers.length, engine.error],
    ]);
    const node = known.get(key) ?? newCard(row, context, key);
    if (engine) node.parts.speculation.update(engine);
    if (engine) node.parts.idle.update(engine);
    if (engine) node.parts.facts?.update(engine);
    if (job) node.parts.jobLine.update(job);
    return node;
  });
  if (nodes.length) parent.replaceChildren(...nodes);
  else fill(parent, h("p", { class: "pz-empty" }, emptyText));
}

/** Which settings there are, without their reasons: these may name figures that go on. */
const settingsKey = (engine) => engine.effective_settings?.map(({ name, effective }) => [name, effective]);

function newCard(row, context, key) {
  const parts = {
    facts: context.engine?.state === "ready" ? engineFacts(context.engine) : null,
    speculation: speculationLine(),
    idle: idleLine(context.refresh),
    jobLine: createJobLine(() => cancelJob(latestJob(row.id).id)),
  };
  const node = Object.assign(modelCard(row, { ...context, ...parts }), { parts });
  node.dataset.key = key;
  return node;
}

export function mount(element) {
  return new Models(element);
}
