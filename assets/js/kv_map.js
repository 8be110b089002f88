// The monitor's tab "KV map": the blocks of the chosen engine, now or at a moment of the last ten minutes.
// Owns which blocks are shown and what is chosen in them; the parts around it only draw. Invariant: what is told beside
// the map is of the same moment as the map, and a change that does not follow what is here is asked for anew.

import { api } from "./api.js";
import { button, fill, h, icon, setText } from "./dom.js";
import { number, t } from "./i18n.js";
import { Blocks } from "./kv_map_cells.js";
import { createMap } from "./kv_map_canvas.js";
import { createCounts, createLegend } from "./kv_map_counts.js";
import { createDetail } from "./kv_map_detail.js";
import { createFit } from "./kv_map_fit.js";
import { createOwners } from "./kv_map_owners.js";
import { palette } from "./kv_map_paint.js";
import { createScrubber } from "./kv_map_scrubber.js";
import { live } from "./live.js";

const STALE_S = 3;
const PATH_EVERY_MS = 1000;

export function mount(element, tab) {
  return new KvMap(element, tab);
}

class KvMap {
  #engine = undefined; // its run id; null: none is loaded, undefined: not asked yet
  #live = new Blocks();
  #shown = this.#live;
  #at = null; // the moment that is shown, null: now
  #asked = 0; // of the moments asked for, the newest
  #picked = null; // a block
  #chosen = null; // an owner
  #path = null;
  #pathAsked = 0;
  #stop = () => {};

  constructor(element, tab) {
    this.element = element;
    this.tab = tab;
    const hue = (owner) => palette().css(owner);
    const select = (owner) => this.#choose(owner);
    this.map = createMap({
      look: (id, count) => this.#look(id, count),
      pick: (id) => this.#pick(id),
      drilled: (range) => this.#drilled(range),
    });
    this.counts = createCounts();
    this.detail = createDetail({ fetchBlock: (id) => this.#fetchBlock(id), select, hue });
    this.owners = createOwners({ select, hue });
    this.scrubber = createScrubber({ goto: (time) => this.#goto(time), live: () => this.#goLive() });
    this.note = h("p", { class: "pz-hint", role: "status" });
    this.back = button(t("kv_back"), () => this.map.overview(), { kind: "quiet", iconName: "left", hidden: true });
    this.problem = h("div", { hidden: true });
    this.body = h(
      "div",
      { class: "pz-kv", hidden: true },
      h(
        "section",
        { class: "pz-card pz-kv-card" },
        h(
          "div",
          { class: "pz-row pz-kv-head" },
          h("div", { class: "pz-grow" }, h("h2", { title: t("kv_map_definition") }, t("kv_map")), this.note),
          this.back,
        ),
        h(
          "div",
          { class: "pz-kv-stage" },
          h("div", { class: "pz-kv-left" }, this.map.element, createLegend()),
          h("aside", { class: "pz-kv-side" }, this.counts.element, this.detail.element),
        ),
        this.scrubber.element,
        h("p", { class: "pz-hint pz-kv-keys", id: "pz-kv-keys" }, t("kv_keys")),
      ),
      this.owners.element,
      createFit(() => this.#engine),
    );
    fill(element, this.problem, this.body);
    this.#say(h("div", { class: "pz-row" }, h("span", { class: "pz-spinner" }), h("span", {}, t("kv_loading"))));
    this.stopWindow = tab.onWindow(() => this.#follow(tab.engine()));
    this.timer = setInterval(() => this.#tick(), 1000);
    this.stopReconnect = live.onReconnect(() => this.#engine && this.#loadHistory());
    this.#follow(tab.engine());
  }

  /** The number of the newest view that has come. */
  get newestNumber() {
    return this.#live.view?.number ?? null;
  }

  destroy() {
    this.#stop();
    clearInterval(this.timer);
    this.stopWindow?.();
    this.stopReconnect();
    this.map.destroy();
    this.scrubber.destroy();
  }

  #say(...content) {
    fill(this.problem, h("section", { class: "pz-card pz-empty" }, content));
    this.problem.hidden = false;
    this.body.hidden = true;
  }

  /** Turn to the chosen engine, where that is another one. */
  #follow(engine) {
    if (engine === this.#engine) return;
    this.#stop();
    this.#engine = engine;
    this.#live = this.#shown = new Blocks();
    this.#at = this.#picked = this.#chosen = this.#path = null;
    if (engine === null) {
      this.#say(h("p", {}, t("kv_no_engine"), " ", h("a", { href: "/models" }, t("see_models"))));
      return;
    }
    this.#stop = live.subscribe(`blocks:${engine}`, (view) => this.#take(view));
    this.#loadHistory();
    this.#refetch();
  }

  async #loadHistory() {
    const engine = this.#engine;
    const history = await api.blockHistory(engine).catch(() => null); // the strip then begins with what comes live
    if (history && engine === this.#engine) this.scrubber.load(history);
  }

  /** A view has come on the topic, or was asked for. */
  #take(view) {
    if (!this.#live.take(view)) {
      this.#refetch();
      return;
    }
    this.problem.hidden = true;
    this.body.hidden = false;
    this.scrubber.add(view);
    if (this.#at === null) this.#show(this.#live);
  }

  async #refetch() {
    if (this.refetching) return;
    this.refetching = true;
    const engine = this.#engine;
    try {
      const view = await api.blocks(engine);
      if (engine === this.#engine && !(this.#live.view?.number >= view.number)) this.#take(view);
    } catch (error) {
      if (engine === this.#engine && !this.#live.view) this.#refused(error);
    } finally {
      this.refetching = false;
    }
  }

  #refused(error) {
    const text = error.status === 0 ? t("server_unreachable") : error.message;
    this.#say(
      h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text)),
      h("p", {}, button(t("kv_retry"), () => this.#refetch(), { iconName: "refresh" })),
    );
  }

  #show(blocks) {
    this.#shown = blocks;
    const { view } = blocks;
    if (this.#chosen !== null && !blocks.owner(this.#chosen)) this.#clear();
    this.map.show(blocks);
    this.counts.update(view);
    this.owners.update(view, this.#chosen, this.#path);
    if (this.#chosen !== null) this.#fetchPath();
    if (this.#picked !== null) this.detail.show(blocks, this.#picked, 1, true);
    this.#describe();
  }

  #describe() {
    const { view, count } = this.#shown;
    if (!view) return;
    const range = this.map.range;
    const age = Math.round(Date.now() / 1000 - view.t);
    const stale = this.#at === null && age > STALE_S;
    const size = t("kv_size", { blocks: number(count), size: number(view.block_size) });
    const shown = range ? t("kv_range", { first: number(range[0]), last: number(range[0] + range[1] - 1) }) : "";
    setText(this.note, [size, shown, stale ? t("stale_for", { age }) : ""].filter(Boolean).join(" · "));
    this.element.classList.toggle("pz-kv-stale", stale);
  }

  #tick() {
    this.#follow(this.tab.engine());
    this.#describe();
  }

  #drilled(range) {
    this.back.hidden = range === null;
    this.#describe();
  }

  // ---- what is looked at and chosen ----

  #look(id, count = 1) {
    if (this.#picked !== null && id === null) this.detail.show(this.#shown, this.#picked, 1, true);
    else this.detail.show(this.#shown, id, count, id !== null && id === this.#picked);
  }

  /** A block was chosen: it stays, and so do its owner's blocks. */
  #pick(id) {
    if (id === null || id === this.#picked) {
      this.#clear();
      this.#show(this.#shown);
      return;
    }
    this.#picked = id;
    this.map.mark(id);
    this.detail.show(this.#shown, id, 1, true);
    const owner = this.#shown.owners[id];
    this.#choose(owner >= 0 ? owner : null);
  }

  #choose(owner) {
    this.#chosen = owner;
    this.#path = null;
    this.#pathAsked = 0;
    this.map.showPath(null);
    if (owner !== null) this.#fetchPath();
    if (this.#shown.view) this.owners.update(this.#shown.view, owner, null);
  }

  #clear() {
    this.#picked = this.#chosen = this.#path = null;
    this.map.mark(null);
    this.map.showPath(null);
    this.detail.show(this.#shown, null);
  }

  #moment() {
    return this.#at === null ? {} : { at: this.#at + 0.001 };
  }

  async #fetchBlock(id) {
    return (await api.blocks(this.#engine, { block: id, ...this.#moment() })).block;
  }

  async #fetchPath() {
    const [owner, at] = [this.#chosen, this.#at];
    if (Date.now() - this.#pathAsked < PATH_EVERY_MS) return;
    this.#pathAsked = Date.now();
    const asked = { owner, ...this.#moment() };
    const view = await api.blocks(this.#engine, asked).catch(() => null); // it has ended meanwhile
    if (!view || owner !== this.#chosen || at !== this.#at) return;
    this.#path = { owner, tables: view.table.tables };
    this.map.showPath(this.#path);
    this.owners.update(this.#shown.view, owner, this.#path);
  }

  // ---- earlier moments ----

  async #goto(time) {
    if (time === null) return;
    const asked = (this.#asked += 1);
    this.#at = time;
    this.scrubber.shows(time);
    const view = await api.blocks(this.#engine, { at: time + 0.001 }).catch((error) => error);
    if (asked !== this.#asked) return;
    if (view instanceof Error) {
      setText(this.note, view.status === 0 ? t("server_unreachable") : view.message);
      return;
    }
    const blocks = new Blocks();
    blocks.take(view);
    this.#pathAsked = 0;
    this.#show(blocks);
  }

  #goLive() {
    this.#asked += 1;
    this.#at = null;
    this.scrubber.shows(null);
    if (this.#live.view) this.#show(this.#live);
  }
}
