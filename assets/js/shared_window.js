// The samples that a tab of the monitor shows: history in at most 1,500 points, then each second as it comes.
// Owns asking, following and standing still. Knows nothing of what is drawn.
// Invariant: what is shown belongs to the newest question; an answer to an older one is dropped.

import { api } from "./api.js";
import { t } from "./i18n.js";
import { live } from "./live.js";
import { SampleWindow } from "./series.js";
import { boundsOf } from "./time_range.js";
import { attempt } from "./toast.js";

const MOST_POINTS = 1500;
const SLOWEST_DRAW_S = 10;
const REFETCH_S = 60; // what live seconds did to a coarse step is replaced by what was recorded
export const ALWAYS = ["host_memory_used_bytes", "engine_process_bytes"]; // they tell why there is nothing

export class SharedWindow {
  #question = null;
  #window = null;
  #newest = null;
  #asked = 0;
  #revision = 0;
  #drawnAt = 0;
  #fetchedAt = 0;
  #listeners = new Set();
  #newestListeners = new Set();
  #leave;

  /** onState(null | "loading" | error message); decorate(view, window) adds markers and the like. */
  constructor({ onState, decorate }) {
    this.onState = onState;
    this.decorate = decorate;
    this.#leave = [
      live.subscribe("samples", (sample) => this.#take(sample)),
      live.onReconnect(() => this.#isLive() && this.#fetch()),
    ];
    this.timer = setInterval(() => this.#tick(), 1000);
  }

  destroy() {
    for (const leave of this.#leave) leave();
    clearInterval(this.timer);
    this.#listeners.clear();
    this.#newestListeners.clear();
    this.#asked += 1;
  }

  /** question: {range, pausedAt, engine, columns, bands}; columns null: all. */
  open(question) {
    this.#question = question;
    this.#window = this.#newest = null;
    this.#revision += 1;
    return this.#fetch();
  }

  /** Stand still, or not, without asking again for what is there. */
  pause(pausedAt) {
    this.#question = { ...this.#question, pausedAt };
    if (pausedAt === null) this.#fetch();
    else this.redraw();
  }

  onWindow(listener) {
    this.#listeners.add(listener);
    if (this.#window) listener(this.#window, this.#view());
    return () => this.#listeners.delete(listener);
  }

  onNewest(listener) {
    this.#newestListeners.add(listener);
    if (this.#newest) listener(this.#newest);
    return () => this.#newestListeners.delete(listener);
  }

  /** Tell everyone what there is. */
  redraw() {
    if (!this.#window) return;
    this.#drawnAt = Date.now();
    const view = this.#view();
    for (const listener of this.#listeners) listener(this.#window, view);
  }

  range() {
    const [since, until] = boundsOf(this.#question.range, this.#question.pausedAt);
    return { since, until, live: this.#isLive() };
  }

  #isLive() {
    const { range, pausedAt } = this.#question ?? {};
    return Boolean(range) && range.name !== "custom" && pausedAt === null;
  }

  #view() {
    const { range, pausedAt } = this.#question;
    const [since, until] = boundsOf(range, pausedAt);
    const end = this.#isLive() ? Math.max(until, this.#window.t.at(-1) ?? 0) : until;
    const view = { window: [end - (until - since), end], revision: `${this.#revision}` };
    return this.decorate(view, this.#window);
  }

  async #fetch() {
    const mine = (this.#asked += 1);
    const { range, pausedAt, engine, columns, bands } = this.#question;
    const [since, until] = boundsOf(range, pausedAt);
    const wish = { since: Math.max(0, since), until, max_points: MOST_POINTS, engine_run_id: engine };
    if (columns) wish.columns = [...new Set([...columns, ...ALWAYS])];
    if (bands?.length) wish.bands = bands;
    if (!this.#window) this.onState("loading");
    try {
      const found = await api.figures(wish);
      if (mine !== this.#asked) return;
      this.#window = new SampleWindow(until - since, found);
      this.#fetchedAt = Date.now();
      this.onState(null);
      this.redraw();
    } catch (error) {
      if (mine !== this.#asked) return;
      this.onState(error.status === 0 ? t("server_unreachable") : error.message);
      if (error.status === undefined) throw error;
    }
  }

  #take(sample) {
    if (!this.#isLive() || (sample.engine_run_id ?? null) !== this.#question.engine) return;
    this.#newest = alone(sample);
    for (const listener of this.#newestListeners) listener(this.#newest);
    if (!this.#window) return;
    this.#window.add(sample);
    const paceS = Math.min(SLOWEST_DRAW_S, this.#window.stepS);
    if (Date.now() - this.#drawnAt >= 1000 * paceS - 250) this.redraw();
  }

  /** Time goes on without samples, too: an engine that is away leaves a gap that grows. */
  #tick() {
    if (!this.#isLive() || !this.#window || document.hidden) return;
    const idleS = (Date.now() - this.#drawnAt) / 1000;
    if (idleS > Math.max(2, Math.min(SLOWEST_DRAW_S, this.#window.stepS))) this.redraw();
    const old = this.#window.stepS > 1 && Date.now() - this.#fetchedAt > 1000 * REFETCH_S;
    if (old && live.connected) {
      this.#fetchedAt = Date.now();
      attempt(() => this.#fetch());
    }
  }
}

/** The newest sample alone: in a step of a long range it would hide among older ones. */
const alone = ({ t: time, columns }) =>
  new SampleWindow(1, {
    t: [time],
    step_s: 1,
    columns: Object.fromEntries(Object.entries(columns).map(([name, value]) => [name, [value ?? null]])),
  });
