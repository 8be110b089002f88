// The models page: what is here, what can be fetched, and the work under way.

import { api } from "./api.js";
import { button, fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { allJobs, cancelJob, isRunning, jobTitle, latestJob, watchJobs } from "./jobs.js";
import { jobLine } from "./job_line.js";
import { live } from "./live.js";
import { modelCard } from "./model_card.js";
import { openAddDialog } from "./pull_dialog.js";
import { speculationLine } from "./speculation_line.js";
import { attempt } from "./toast.js";

const SHOWN_JOBS = 6;

class Models {
  #rows = [];
  #engines = [];
  #fetching = false;
  #again = false;
  #wanted = []; // words of the filter

  constructor(element) {
    this.here = h("div", { class: "pz-model-grid" });
    this.catalogue = h("div", { class: "pz-model-grid" });
    this.jobs = h("ul", { class: "pz-jobs" });
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
      const { state: drafting, gain } = state.speculation;
      const told = [drafting, gain?.toFixed(1)];
      const now = JSON.stringify([told, state.engines.map((engine) => [engine.id, engine.state, engine.selftest])]);
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
    const rows = this.#rows.filter((row) => fits(row, this.#wanted));
    const none = this.#wanted.length ? t("no_model_fits") : null;
    sync(this.here, rows.filter(isHere), context, none ?? t("nothing_on_disk"));
    sync(this.catalogue, rows.filter((row) => !isHere(row)), context, none ?? t("catalogue_empty"));
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

/** Whether a row tells of all these words. */
function fits(row, words) {
  const said = [row.id, row.name, row.architecture, row.quantization, row.format, row.license].join(" ").toLowerCase();
  return words.every((word) => said.includes(word));
}

/** Bring the cards up to date; a card whose data did not change keeps its node, with whatever is open in it. */
function sync(parent, rows, contextOf, emptyText) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const nodes = rows.map((row) => {
    const line = speculationLine();
    const context = { ...contextOf(row), speculation: line };
    const key = JSON.stringify([
      row,
      context.job,
      context.engine?.effective_settings,
      context.engine?.state,
      context.engine?.log_tail,
      context.engine?.speculation?.proposers.length,
    ]);
    const node = known.get(key) ?? Object.assign(modelCard(row, context), { key, line });
    if (context.engine) node.line.update(context.engine);
    return node;
  });
  nodes.forEach((node) => node.key && (node.dataset.key = node.key));
  if (nodes.length) parent.replaceChildren(...nodes);
  else fill(parent, h("p", { class: "pz-empty" }, emptyText));
}

export function mount(element) {
  return new Models(element);
}
