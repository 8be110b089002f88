// The Requests page: the list with its filters, or one request. Owns the address bar; the parts know their part.

import { api } from "./api.js";
import { button, fill, h, icon } from "./dom.js";
import { number, t } from "./i18n.js";
import { addressOf, readAddress } from "./request_address.js";
import { openDetail } from "./request_detail.js";
import { RequestRows } from "./request_rows.js";
import { createFilters } from "./requests_filters.js";
import { createTable } from "./requests_table.js";

const AGE_MS = 5000;

class RequestsPage {
  #address = readAddress();
  #models = [];
  #detail = null;
  #returnTo = null;

  constructor(element) {
    this.element = element;
    this.filters = createFilters((filters) => this.#go({ filters }, { replace: true }));
    this.table = createTable((id) => this.#go({ id, filters: this.#address.filters }));
    this.note = h("div", { class: "pz-req-note", "aria-live": "polite" });
    this.more = button(t("req_load_older"), () => this.rows.older(), { iconName: "right" });
    this.list = h(
      "div",
      { class: "pz-req-list" },
      h(
        "div",
        { class: "pz-page-head" },
        h("h1", {}, t("nav_requests")),
        h("p", { class: "pz-sentence" }, t("req_intro")),
      ),
      this.filters.element,
      h("section", { class: "pz-card" }, this.table.element, this.note, h("div", { class: "pz-req-more" }, this.more)),
    );
    this.rows = new RequestRows(
      () => this.#draw(),
      (row) => this.#detail?.take(row),
    );
    addEventListener("popstate", () => this.#show(readAddress()));
    document.addEventListener("keydown", (event) => this.#onKey(event));
    setInterval(() => document.hidden || this.#draw(), AGE_MS);
    this.#findModels();
    this.#show(this.#address);
  }

  /** The filter offers models that are here; others that were asked for come with their rows. */
  async #findModels() {
    const models = await api.models().catch(() => []);
    this.#models = models.filter((model) => model.on_disk).map((model) => model.id);
    this.#draw();
  }

  #go(address, { replace = false } = {}) {
    this.#returnTo = address.id ?? this.#returnTo;
    history[replace ? "replaceState" : "pushState"]({}, "", addressOf(address));
    this.#show(readAddress());
  }

  #show(address) {
    const before = JSON.stringify(this.#address.filters);
    this.#address = address;
    this.#detail?.destroy();
    this.#detail = null;
    if (address.id) {
      this.#detail = openDetail(address.id, () => this.#go({ filters: this.#address.filters }));
      fill(this.element, this.#detail.element);
      scrollTo(0, 0);
      return;
    }
    if (this.list.parentNode !== this.element) fill(this.element, this.list);
    if (!this.rows.loaded || before !== JSON.stringify(address.filters)) this.rows.search(address.filters);
    this.#draw();
    this.#focusReturned();
  }

  /** Back from a request, the keyboard stands where it left the list. */
  #focusReturned() {
    if (!this.#returnTo) return;
    const row = this.list.querySelector(`[data-request="${CSS.escape(this.#returnTo)}"] .pz-req-link`);
    this.#returnTo = null;
    row?.focus();
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog"))
      return;
    if (event.key === "Escape" && this.#detail && !document.querySelector("dialog[open]")) {
      this.#go({ filters: this.#address.filters });
    }
  }

  #draw() {
    if (this.#detail) return;
    const { rows, loading, loaded, error, nextBefore } = this.rows;
    const models = new Set([...this.#models, ...rows.map((row) => row.model_id)]);
    this.filters.show(this.#address.filters, [...models].sort());
    this.table.draw(rows);
    this.table.element.hidden = !rows.length;
    this.more.hidden = nextBefore === null || Boolean(error);
    this.more.disabled = loading;
    fill(this.note, this.#noteOf(rows, { loading, loaded, error, nextBefore }));
  }

  #noteOf(rows, { loading, loaded, error, nextBefore }) {
    if (error) {
      const text = error.status === 0 ? t("server_unreachable") : error.message;
      return [
        h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text)),
        button(t("req_try_again"), () => this.rows.search(this.#address.filters), { iconName: "refresh" }),
      ];
    }
    if (loading) return h("p", { class: "pz-row pz-hint" }, h("span", { class: "pz-spinner" }), t("req_loading"));
    if (rows.length && nextBefore !== null) return null;
    if (rows.length) return h("p", { class: "pz-hint" }, t("req_all", { n: number(rows.length) }));
    if (!loaded) return null;
    const filtered = Object.values(this.#address.filters).some(Boolean);
    if (filtered) return h("p", { class: "pz-empty" }, t(nextBefore === null ? "req_none_fit" : "req_none_yet_found"));
    return h(
      "div",
      { class: "pz-empty pz-req-first" },
      h("p", {}, t("req_none")),
      h("a", { class: "pz-button pz-secondary", href: "/chat" }, icon("chat"), h("span", {}, t("open_chat"))),
    );
  }
}

export function mount(element) {
  return new RequestsPage(element);
}
