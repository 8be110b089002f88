// A window of samples in memory: history from /api/samples, then each second from the live topic. Pure data.
// Invariant: a second without a sample is a gap (null), never a line drawn across it.

const GAP_STEPS = 3;
const LIVE_GAP_S = 8; // the newest seconds may still be on their way

export class SampleWindow {
  constructor(spanS, history) {
    this.spanS = spanS;
    this.stepS = history.step_s;
    this.t = [...history.t];
    this.columns = copied(history.columns);
    this.low = copied(history.low);
    this.high = copied(history.high);
    this.#dropUnwrittenEnd();
  }

  /** The newest seconds may not be on disk yet; the live topic brings them, and until then they are no gap. */
  #dropUnwrittenEnd() {
    while (this.t.length && [...this.columns.values()].every((values) => values.at(-1) === null)) {
      this.t.pop();
      for (const values of this.#all()) values.pop();
    }
  }

  #all() {
    return [this.columns, this.low, this.high].flatMap((columns) => [...columns.values()]);
  }

  /** Add one live sample; within one step the newest stands, and the band grows to hold it. */
  add({ t, columns }) {
    const slot = Math.floor(t / this.stepS) * this.stepS;
    const last = this.t.at(-1) ?? -Infinity;
    if (slot < last) return;
    if (Number.isFinite(last) && slot - last > GAP_STEPS * this.stepS) {
      this.#push(last + this.stepS);
      this.#push(slot - this.stepS);
    }
    if (slot > last) this.#push(slot);
    for (const [name, value] of Object.entries(columns)) {
      if (typeof value !== "number") continue;
      this.#column(name)[this.t.length - 1] = value;
      widen(this.low.get(name), value, Math.min);
      widen(this.high.get(name), value, Math.max);
    }
    this.#trim(slot - this.spanS);
  }

  #push(t) {
    this.t.push(t);
    for (const values of this.#all()) values.push(null);
  }

  #column(name) {
    if (!this.columns.has(name)) this.columns.set(name, new Array(this.t.length).fill(null));
    return this.columns.get(name);
  }

  #trim(oldest) {
    let count = 0;
    while (count < this.t.length && this.t[count] < oldest) count += 1;
    if (!count) return;
    this.t.splice(0, count);
    for (const values of this.#all()) values.splice(0, count);
  }

  /** When a column's first number was taken; null where it has none. */
  firstKnown(name) {
    return this.t[this.get(name).findIndex((value) => value !== null)] ?? null;
  }

  /** A column as it is, all null where the server has no such column. */
  get(name) {
    return this.columns.get(name) ?? new Array(this.t.length).fill(null);
  }

  /** [smallest, largest] of a column in each step; null where that was not asked for, or a step is one sample. */
  band(name) {
    return this.stepS > 1 && this.low.has(name) ? [this.low.get(name), this.high.get(name)] : null;
  }

  /** Stretches of [from, to] in which a column has nothing: [[start, end], ...]. */
  gaps(name, [from, to]) {
    const shortest = GAP_STEPS * this.stepS;
    const found = [];
    let end = from; // of what is known so far
    const values = this.get(name);
    this.t.forEach((t, i) => {
      if (values[i] === null || t + this.stepS <= from) return;
      if (t - end >= shortest) found.push([end, t]);
      end = t + this.stepS;
    });
    if (to - end >= Math.max(shortest, LIVE_GAP_S)) found.push([end, to]);
    return found;
  }
}

const copied = (columns = {}) => new Map(Object.entries(columns).map(([name, values]) => [name, [...values]]));

function widen(values, value, choose) {
  if (values) values[values.length - 1] = choose(value, values.at(-1) ?? value);
}
