// The rows of the list: pages from the server, changes from the live topic. Knows nothing of how they are shown.
// Invariants: newest first, each request once; at most one page is asked for at a time, and the answer to a question
// that is no longer asked is dropped; listeners hear of many changes at once.

import { api } from "./api.js";
import { live } from "./live.js";
import { fits, queryOf } from "./request_address.js";

const PAGE = 60;
const MOST_ADDED = 1000; // rows that came live, before the list is read anew: a page may stay open for days
const MOST_LOOKS = 6; // pages asked for in a row while a search brings nothing

export class RequestRows {
  rows = [];
  nextBefore = null;
  loading = false;
  loaded = false;
  error = null;
  #filters = {};
  #question = 0;
  #pending = null;
  #added = 0; // live, since the list was last read from its beginning

  constructor(onChange, onRow = () => {}) {
    this.onChange = onChange;
    this.onRow = onRow;
    live.subscribe("requests", (row) => this.#take(row));
    live.onReconnect(() => this.#refresh());
  }

  /** Show those that fit these filters from now on. */
  async search(filters) {
    this.#filters = filters;
    this.rows = [];
    this.nextBefore = null;
    this.loaded = false;
    this.#added = 0;
    await this.#ask(null);
  }

  async older() {
    if (this.nextBefore !== null && !this.loading) await this.#ask(this.nextBefore);
  }

  /** What happened while the socket was away is read anew; older pages stay. */
  async #refresh() {
    if (!this.loading) await this.#ask(null, "before");
  }

  /** how: "behind" the rows there are, "before" them, or "instead" of them. */
  async #ask(before, how = "behind") {
    const question = ++this.#question;
    this.loading = true;
    this.error = null;
    this.#changed();
    try {
      await this.#read(before, how, question);
    } catch (error) {
      if (error.status === undefined) throw error;
      if (question === this.#question) this.error = error;
    }
    if (question !== this.#question) return;
    this.loading = false;
    this.loaded = true;
    this.#changed();
  }

  /** One page that has rows, or the last of a few that have none: a search looks through a part of the list a time. */
  async #read(before, how, question) {
    let next = before;
    for (let look = 0; look < MOST_LOOKS; look++) {
      const query = { ...queryOf(this.#filters), limit: PAGE };
      if (next !== null) query.before = next;
      const page = await api.requestPage(query);
      if (question !== this.#question) return;
      next = page.next_before;
      const known = new Map(page.requests.map((row) => [row.id, row]));
      const others = how === "instead" ? [] : this.rows.filter((row) => !known.has(row.id));
      this.rows = how === "before" ? [...page.requests, ...others] : [...others, ...page.requests];
      if (page.requests.length || next === null) break;
    }
    if (how !== "before") this.nextBefore = next;
  }

  #take(row) {
    this.onRow(row);
    const place = this.rows.findIndex((other) => other.id === row.id);
    const belongs = fits(row, this.#filters);
    if (place >= 0 && belongs) this.rows[place] = row;
    else if (place >= 0) this.rows.splice(place, 1);
    else if (belongs && this.loaded) this.#add(row);
    else return;
    this.#changed();
  }

  #add(row) {
    this.rows.unshift(row);
    this.#added += 1;
    if (this.#added < MOST_ADDED || this.loading) return;
    this.#added = 0;
    this.#ask(null, "instead");
  }

  #changed() {
    this.#pending ??= requestAnimationFrame(() => {
      this.#pending = null;
      this.onChange();
    });
  }
}
