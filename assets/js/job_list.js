// The jobs under way and done: a card each, newest first, of one kind or of all, with older ones on request.

import { button, h } from "./dom.js";
import { t, word } from "./i18n.js";
import { createJobCard } from "./job_card.js";
import { allJobs, fetchOlderJobs, hasOlderJobs, isRunning } from "./jobs.js";
import { attempt } from "./toast.js";

const FIRST_SHOWN = 6;
const MORE_SHOWN = 20;

export class JobList {
  #cards = new Map();
  #shown = FIRST_SHOWN;

  constructor() {
    this.kind = h("select", { class: "pz-field pz-job-kind", "aria-label": t("mod_kind_of_job"), onchange: () => this.#choose() });
    this.list = h("ul", { class: "pz-jobs" });
    this.more = button(t("mod_older_jobs"), () => this.#showMore(), { kind: "quiet" });
    this.empty = h("p", { class: "pz-empty" }, t("no_jobs_yet"));
    this.element = h(
      "section",
      { class: "pz-job-list" },
      h("div", { class: "pz-row pz-section-row" }, h("h2", { class: "pz-section pz-grow" }, t("jobs")), this.kind),
      this.list,
      this.empty,
      this.more,
    );
  }

  #choose() {
    this.#shown = FIRST_SHOWN;
    this.draw();
  }

  async #showMore() {
    this.#shown += MORE_SHOWN;
    if (this.#wanted().length < this.#shown && hasOlderJobs()) await attempt(fetchOlderJobs);
    this.draw();
  }

  #wanted() {
    return allJobs().filter((job) => this.kind.value === "" || job.kind === this.kind.value);
  }

  draw() {
    this.#drawKinds();
    const jobs = this.#wanted();
    const shown = jobs.filter((job, index) => index < this.#shown || isRunning(job));
    const nodes = shown.map((job) => {
      const card = this.#cards.get(job.id) ?? createJobCard(job);
      this.#cards.set(job.id, card);
      card.update(job);
      return card.element;
    });
    const same = nodes.length === this.list.children.length && nodes.every((node, i) => node === this.list.children[i]);
    if (!same) this.list.replaceChildren(...nodes); // a card that stays in its place keeps its focus
    this.empty.hidden = nodes.length > 0;
    this.more.hidden = shown.length >= jobs.length && !hasOlderJobs();
  }

  #drawKinds() {
    const kinds = ["", ...new Set(allJobs().map((job) => job.kind))].sort();
    if (kinds.join() === [...this.kind.options].map((option) => option.value).join()) return;
    const chosen = this.kind.value;
    const label = (kind) => (kind === "" ? t("mod_all_kinds") : word("mod_jobkind", kind));
    this.kind.replaceChildren(...kinds.map((kind) => h("option", { value: kind }, label(kind))));
    this.kind.value = kinds.includes(chosen) ? chosen : "";
  }
}
