// The models page: what is here, what can be fetched, and the work under way.

import { api } from "./api.js";
import { button, fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { allJobs, cancelJob, isRunning, jobTitle, latestJob, watchJobs } from "./jobs.js";
import { jobLine } from "./job_line.js";
import { live } from "./live.js";
import { modelCard } from "./model_card.js";
import { openAddDialog } from "./pull_dialog.js";
import { attempt } from "./toast.js";

const SHOWN_JOBS = 6;

class Models {
  #rows = [];
  #engines = [];
  #fetching = false;
  #again = false;

  constructor(element) {
    this.here = h("div", { class: "pz-model-grid" });
    this.catalogue = h("div", { class: "pz-model-grid" });
    this.jobs = h("ul", { class: "pz-jobs" });
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
        button(t("add_model"), () => openAddDialog(), { iconName: "plus" }),
      ),
      h("h2", { class: "pz-section" }, t("on_this_machine")),
      this.here,
      h("h2", { class: "pz-section" }, t("catalogue")),
      this.catalogue,
      h("h2", { class: "pz-section" }, t("jobs")),
      this.jobs,
    );
    const refresh = () => attempt(() => this.#fetch());
    let states = "";
    watchJobs(() => {
      const now = JSON.stringify(allJobs().map((job) => [job.id, job.state]));
      if (now !== states) refresh();
      states = now;
      this.#draw();
    });
    let engines = "";
    live.subscribe("header", (state) => {
      const now = JSON.stringify(state.engines.map((engine) => [engine.id, engine.state]));
      if (now !== engines) refresh();
      engines = now;
    });
    live.onReconnect(refresh);
    refresh();
  }

  /** One fetch at a time; what was asked for meanwhile is one more fetch afterwards. */
  async #fetch() {
    if (this.#fetching) {
      this.#again = true;
      return;
    }
    this.#fetching = true;
    try {
      do {
        this.#again = false;
        [this.#rows, this.#engines] = await Promise.all([api.models(), api.engines()]);
        this.#draw();
      } while (this.#again);
    } finally {
      this.#fetching = false;
    }
  }

  #draw() {
    const context = (row) => ({
      job: latestJob(row.id),
      engine: this.#engines.find((engine) => engine.id === row.engine_id),
      refresh: () => attempt(() => this.#fetch()),
    });
    const isHere = (row) =>
      row.on_disk || ["downloading", "loading", "loaded", "unloading", "failed", "broken"].includes(row.state);
    const here = this.#rows.filter(isHere);
    const others = this.#rows.filter((row) => !isHere(row));
    sync(this.here, here, context, t("nothing_on_disk"));
    sync(this.catalogue, others, context, t("catalogue_empty"));
    const jobs = allJobs()
      .filter((job) => isRunning(job) || Date.now() / 1000 - job.created_at < 86400)
      .slice(0, SHOWN_JOBS);
    fill(
      this.jobs,
      jobs.length
        ? jobs.map((job) =>
            h(
              "li",
              { class: "pz-card pz-job" },
              h("strong", {}, jobTitle(job)),
              jobLine(job, () => cancelJob(job.id)),
            ),
          )
        : h("li", { class: "pz-empty" }, t("no_jobs_yet")),
    );
  }
}

/** Bring the cards up to date; a card whose data did not change keeps its node, with whatever is open in it. */
function sync(parent, rows, contextOf, emptyText) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const nodes = rows.map((row) => {
    const context = contextOf(row);
    const key = JSON.stringify([
      row,
      context.job,
      context.engine?.effective_settings,
      context.engine?.state,
      context.engine?.log_tail,
    ]);
    return known.get(key) ?? Object.assign(modelCard(row, context), { key });
  });
  nodes.forEach((node) => node.key && (node.dataset.key = node.key));
  if (nodes.length) parent.replaceChildren(...nodes);
  else fill(parent, h("p", { class: "pz-empty" }, emptyText));
}

export function mount(element) {
  return new Models(element);
}
