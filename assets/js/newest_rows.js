// A list of the newest rows of a kind: fetched whole, kept up by a live topic. Knows nothing of what the rows are but
// that they have an `id`. Invariants: newest first, each row once, at most `most`; what the topic tells while the list is
// fetched stays, since the answer may be older; an answer that a later fetch has overtaken is dropped.

export class NewestRows {
  rows = [];
  #most;
  #told = []; // since the last fetch began
  #fetches = 0;

  constructor(most) {
    this.#most = most;
  }

  /** A row from the topic. */
  take(row) {
    this.rows = this.#over([row], this.rows);
    this.#told = this.#over([row], this.#told);
  }

  /** `read`: a promise's maker, which gives the list, newest first. */
  async fetch(read) {
    const fetch = ++this.#fetches;
    this.#told = [];
    const rows = await read();
    if (fetch === this.#fetches) this.rows = this.#over(this.#told, rows);
  }

  #over(newer, rows) {
    const ids = new Set(newer.map((row) => row.id));
    return [...newer, ...rows.filter((row) => !ids.has(row.id))].slice(0, this.#most);
  }
}
