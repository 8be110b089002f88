// Everything of one request: why it was slow, its course, its figures, its drafts, its texts, and what can be done.
// While it runs, what the live feed says of it is followed by the whole from the server, at most once a second.

import { api } from "./api.js";
import { button, fill, h, icon } from "./dom.js";
import { number, seconds, t } from "./i18n.js";
import { bodyPane } from "./request_body.js";
import { figures, speculation } from "./request_figures.js";
import { plainId } from "./request_address.js";
import { waterfall } from "./request_waterfall.js";
import { outcomeText, progressText, reasonTexts } from "./request_words.js";
import { stateChip } from "./requests_table.js";
import { attempt, toast } from "./toast.js";

const REFRESH_MS = 1000;

/** {element, take(row), destroy()}; `back` leaves it. */
export function openDetail(id, back) {
  return new Detail(plainId(id), back);
}

class Detail {
  #id;
  #timer = null;
  #gone = false;
  #cancelling = false;
  #open = new Set(); // tables that the reader has opened

  constructor(id, back) {
    this.#id = id;
    this.head = h("div", { class: "pz-req-head" });
    const waiting = h("p", { class: "pz-row pz-hint" }, h("span", { class: "pz-spinner" }), t("req_loading"));
    this.body = h("div", { class: "pz-stack" }, waiting);
    this.element = h(
      "div",
      { class: "pz-req-detail" },
      h("div", {}, button(t("req_back"), back, { kind: "quiet", iconName: "left" })),
      this.head,
      this.body,
    );
    this.#fetch();
  }

  take(row) {
    if (row.id !== this.#id) return;
    if (row.finished_at && this.#cancelling) {
      this.#cancelling = false;
      toast(t("req_cancelled", { n: number(row.num_output_tokens) }), "ok");
    }
    this.#soon(row.finished_at ? 0 : REFRESH_MS);
  }

  destroy() {
    this.#gone = true;
    clearTimeout(this.#timer);
  }

  #soon(wait) {
    if (!wait) clearTimeout(this.#timer);
    else if (this.#timer !== null) return;
    this.#timer = setTimeout(() => this.#fetch(), wait);
  }

  async #fetch() {
    this.#timer = null;
    try {
      const request = await api.request(this.#id);
      if (!this.#gone) this.#draw(request);
    } catch (error) {
      if (error.status === undefined) throw error;
      if (!this.#gone) this.#fail(error);
    }
  }

  #fail(error) {
    const text = error.status === 0 ? t("server_unreachable") : error.message;
    fill(this.head, h("h1", {}, t("req_title")));
    fill(
      this.body,
      h(
        "section",
        { class: "pz-card pz-stack" },
        h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text)),
        h("div", {}, button(t("req_try_again"), () => this.#fetch(), { iconName: "refresh" })),
      ),
    );
  }

  #draw(request) {
    for (const twin of this.body.querySelectorAll("details")) {
      const name = twin.closest("section").dataset.part;
      if (twin.open) this.#open.add(name);
      else this.#open.delete(name);
    }
    fill(this.head, this.#headOf(request));
    fill(
      this.body,
      card("why", t("req_why"), whyLine(request)),
      card("course", t("req_course"), request.timeline ? waterfall(request.timeline) : notRecorded()),
      h(
        "div",
        { class: "pz-req-two" },
        card("figures", t("req_figures"), figures(request)),
        card("drafts", t("req_speculation"), speculation(request), chalkboardLink(request)),
      ),
      card(
        "texts",
        t("req_texts"),
        bodyPane(request, () => this.#fetch()),
      ),
    );
    for (const name of this.#open) this.body.querySelector(`[data-part="${name}"] details`)?.setAttribute("open", "");
    if (request.running) this.#soon(REFRESH_MS);
  }

  #headOf(request) {
    const copy = async () => {
      await navigator.clipboard.writeText(request.id);
      toast(t("req_copied"), "ok");
    };
    const cancel = async () => {
      this.#cancelling = true; // before it is asked for: the end may be told first
      if ((await attempt(() => api.cancelRequest(request.id))) === undefined) this.#cancelling = false;
    };
    return [
      h("h1", {}, t("req_title"), " ", h("code", { class: "pz-req-id" }, request.id)),
      h(
        "div",
        { class: "pz-row pz-req-sub" },
        stateChip(request),
        h("span", {}, request.model_id),
        h("span", { class: "pz-hint", "aria-live": "polite" }, progressText(request) ?? outcomeText(request)),
      ),
      promptBar(request.progress),
      request.error ? h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, request.error)) : null,
      h(
        "div",
        { class: "pz-actions" },
        request.running ? button(t("req_cancel"), cancel, { kind: "danger", iconName: "stop" }) : null,
        request.body ? replayLink(request) : null,
        navigator.clipboard ? button(t("req_copy_id"), copy, { iconName: "copy" }) : null,
      ),
    ];
  }
}

/** How far a prompt is that is being computed. */
const promptBar = (progress) =>
  progress?.state === "prefill"
    ? h("progress", {
        class: "pz-progress",
        max: progress.total,
        value: progress.done,
        "aria-label": t("req_state_prefill"),
      })
    : null;

const card = (part, title, ...content) =>
  h("section", { class: "pz-card pz-req-card", dataset: { part } }, h("h2", {}, title), content);

const notRecorded = () => h("p", { class: "pz-empty" }, t("req_course_none"));

/** One sentence: how long it took, and what held it up. */
function whyLine(request) {
  if (!request.timeline) return notRecorded();
  const reasons = reasonTexts(request.why_slow);
  const took = t(request.running ? "req_runs_for" : "req_took", { total: seconds(request.timeline.end_s) });
  return [
    h(
      "p",
      { class: "pz-req-why" },
      h("strong", {}, took),
      " ",
      reasons.length ? `${reasons.join("; ")}.` : t("req_why_nothing"),
    ),
    h("p", { class: "pz-hint" }, t("req_why_definition")),
  ];
}

const replayLink = ({ id }) =>
  h(
    "a",
    { class: "pz-button pz-secondary", href: `/playground?tab=completion&replay=${id}` },
    icon("playground"),
    h("span", {}, t("req_replay")),
  );

const chalkboardLink = ({ id, trace, source }) =>
  trace
    ? h(
        "div",
        { class: "pz-actions" },
        h(
          "a",
          { class: "pz-button pz-secondary", href: `/playground?tab=chalkboard&request=${id}` },
          icon("external"),
          h("span", {}, t("req_chalkboard")),
        ),
      )
    : source === "conversation"
      ? h("p", { class: "pz-hint" }, t("req_no_trace"))
      : null;
