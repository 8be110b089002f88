// A window of samples in memory: history from /api/samples, then each second from the live topic. Pure data.
// Invariant: a second without a sample is a gap (null), never a line drawn across it.

const GAP_STEPS = 3;

export class SampleWindow {
  constructor(spanS, history) {
    this.spanS = spanS;
    this.stepS = history.step_s;
    this.t = [...history.t];
    this.columns = new Map(Object.entries(history.columns).map(([name, values]) => [name, [...values]]));
    this.#dropUnwrittenEnd();
  }

  /** The newest seconds may not be on disk yet; the live topic brings them, and until then they are no gap. */
  #dropUnwrittenEnd() {
    while (this.t.length && [...this.columns.values()].every((values) => values.at(-1) === null)) {
      this.t.pop();
      for (const values of this.columns.values()) values.pop();
    }
  }

  /** Add one live sample; within one step the newest stands. */
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
      if (typeof value === "number") this.#column(name)[this.t.length - 1] = value;
    }
    this.#trim(slot - this.spanS);
  }

  #push(t) {
    this.t.push(t);
    for (const values of this.columns.values()) values.push(null);
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
    for (const values of this.columns.values()) values.splice(0, count);
  }

  /** When a column's first number was taken; null where it has none. */
  firstKnown(name) {
    return this.t[this.get(name).findIndex((value) => value !== null)] ?? null;
  }

  /** A column as it is, all null where the server has no such column. */
  get(name) {
    return this.columns.get(name) ?? new Array(this.t.length).fill(null);
  }
}
