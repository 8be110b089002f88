// The front page: one sentence, four tiles with the last 15 minutes, the latest requests and events.

import { api } from "./api.js";
import { button, fill, h, icon, setText } from "./dom.js";
import { liveEngines, loadingEngine, servingEngines, sumOf } from "./engine_state.js";
import { gpuReason } from "./gpu_reason.js";
import { bytes, number, percent, rate, seconds, t, word } from "./i18n.js";
import { bringUp, bringingUp, latestBringUp, progressOf, stageText, watchJobs } from "./jobs.js";
import { live } from "./live.js";
import { partsLegend } from "./memory_bar.js";
import { NewestRows } from "./newest_rows.js";
import { offeredModel, onOfferedModel } from "./offered_model.js";
import { createFacts } from "./overview_facts.js";
import { showEvents, showRequests } from "./overview_news.js";
import { createSparkline } from "./sparkline.js";
import { attempt } from "./toast.js";

const SPAN_S = 900;
const STEP_S = 5;
const SHOWN_ROWS = 8;
const LOOKED_AT = 200; // requests, of which those of the last 15 minutes count

const TILES = {
  tokens: { hue: "tokens", column: "generation_tokens_per_s" },
  ttft: { hue: "runtime", column: null },
  kv: { hue: "kv", column: "kv_blocks_used" },
  memory: { hue: "weights", column: "host_memory_used_bytes" },
};

class Overview {
  #header = null;
  #fetched = false;
  #requests = new NewestRows(LOOKED_AT);
  #events = new NewestRows(SHOWN_ROWS);
  #samples = { t: [], columns: {} };

  constructor(element) {
    this.sentence = h("p", { class: "pz-sentence" });
    this.hero = h("div", {});
    this.tiles = Object.fromEntries(Object.entries(TILES).map(([name, { hue }]) => [name, createTile(name, hue)]));
    this.requests = h("div", { class: "pz-table-wrap" });
    this.events = h("ul", { class: "pz-events" });
    this.facts = h("div", { class: "pz-facts" });
    this.server = createFacts();
    this.verdict = h("div", {});
    fill(
      element,
      h("div", { class: "pz-page-head" }, h("h1", {}, t("nav_overview")), this.sentence),
      this.hero,
      h(
        "div",
        { class: "pz-tiles" },
        Object.values(this.tiles).map((tile) => tile.element),
      ),
      h(
        "div",
        { class: "pz-two" },
        h(
          "div",
          { class: "pz-stack" },
          this.verdict,
          card(t("recent_requests"), this.requests),
          card(t("events"), this.events),
        ),
        h("div", { class: "pz-stack" }, card(t("memory_by_part"), this.facts), this.server.element),
      ),
    );
    this.#listen();
    this.#mountVerdict();
  }

  /** Whether speculation pays is another module's to say; it comes when the rest already stands. */
  async #mountVerdict() {
    const { mountVerdict } = await import("./verdict.js");
    mountVerdict(this.verdict, { compact: true });
  }

  #listen() {
    live.subscribe("header", (state) => {
      this.#header = state;
      this.#drawState();
    });
    live.subscribe("requests", (row) => {
      this.#requests.take(row);
      this.#drawRequests();
    });
    live.subscribe("events", (event) => {
      this.#events.take(event);
      this.#drawEvents();
    });
    watchJobs(() => this.#drawState());
    onOfferedModel(() => this.#drawState());
    const refresh = () => attempt(() => this.#fetch());
    live.onReconnect(refresh);
    refresh();
    setInterval(() => document.hidden || this.#tick(), STEP_S * 1000);
  }

  async #fetch() {
    await Promise.all([
      this.#requests.fetch(() => api.requests(LOOKED_AT)),
      this.#events.fetch(() => api.events(SHOWN_ROWS)),
      this.#fetchSamples(),
    ]);
    this.#fetched = true;
    this.#drawRequests();
    this.#drawEvents();
  }

  /** Ages grow and lines move on, also when nothing happens. A server that is away is the header's news, not ours. */
  #tick() {
    this.#drawRequests();
    this.#drawEvents();
    if (live.connected) attempt(() => this.#fetchSamples());
  }

  async #fetchSamples() {
    const now = Date.now() / 1000;
    this.#samples = await api.samples(now - SPAN_S, now, STEP_S);
    this.#drawSparks();
  }

  #drawSparks() {
    const { t: times, columns } = this.#samples;
    for (const [name, { column }] of Object.entries(TILES)) {
      if (column) this.tiles[name].spark.draw(times.map((time, i) => [time, columns[column]?.[i] ?? null]));
    }
    const now = Date.now() / 1000;
    const points = this.#recent().map((row) => [row.created_at, row.ttft_s]);
    this.tiles.ttft.spark.draw([[now - SPAN_S, null], ...points, [now, null]]);
  }

  #recent() {
    const since = Date.now() / 1000 - SPAN_S;
    return this.#requests.rows.filter((row) => row.created_at >= since && typeof row.ttft_s === "number").reverse();
  }

  #drawState() {
    const state = this.#header;
    if (!state?.memory) return;
    const { total_bytes: total, available_bytes: available, parts } = state.memory;
    const used = total - available;
    setText(this.sentence, summary(state, used, total));
    this.server.show(state);
    this.#drawHero(state);
    this.tiles.tokens.show(rate(sumOf(state, "generation_tokens_per_s")), t("running_waiting", traffic(state)));
    const [blocks, blocksUsed] = [sumOf(state, "kv_blocks_total"), sumOf(state, "kv_blocks_used")];
    this.tiles.kv.show(
      percent(blocksUsed, blocks),
      blocks ? t("kv_blocks_of", { used: number(blocksUsed), total: number(blocks) }) : t("no_kv_pool"),
    );
    this.tiles.memory.show(bytes(used), t("of_total", { total: bytes(total), percent: percent(used, total) }));
    fill(this.facts, partsLegend(parts), gpuLine(state.gpu));
  }

  #drawHero(state) {
    const loading = loadingEngine(state);
    const offered = offeredModel(state.default_model_id);
    const job = bringingUp(loading?.model_id ?? offered);
    const crash = state.engines.find((engine) => engine.state === "failed")?.error;
    const error = crash ?? latestBringUp(offered)?.error;
    const idle = ["no_model", "failed"].includes(state.state);
    const unused = this.#fetched && !this.#requests.rows.length && servingEngines(state).length > 0;
    const known = this.#requests.rows.length > 0;
    const key = JSON.stringify([idle, unused, job ? [job.stage, job.done, job.message] : [error, offered, known]]);
    if (key === this.heroKey) return;
    this.heroKey = key;
    if (job) fill(this.hero, loadingCard(job, loading?.progress));
    else if (idle) fill(this.hero, firstSteps(offered, error, known));
    else fill(this.hero, unused ? nextStep() : null);
  }

  #drawRequests() {
    const times = this.#recent()
      .map((row) => row.ttft_s)
      .sort((a, b) => a - b);
    const at = (share) => times[Math.min(times.length - 1, Math.floor(share * times.length))];
    this.tiles.ttft.show(
      times.length ? seconds(at(0.5)) : "–",
      times.length ? t("p95_of", { p95: seconds(at(0.95)), n: times.length }) : t("no_requests_15_min"),
    );
    this.#drawSparks();
    showRequests(this.requests, this.#requests.rows.slice(0, SHOWN_ROWS));
  }

  #drawEvents() {
    showEvents(this.events, this.#events.rows);
  }
}

function createTile(name, hue) {
  const value = h("strong", { class: "pz-tile-value pz-figure", dataset: { tile: name } }, "–");
  const note = h("span", { class: "pz-tile-note" });
  const spark = createSparkline(hue, t(`tile_${name}_spark`));
  const element = h(
    "section",
    { class: "pz-card pz-tile", title: t(`tile_${name}_definition`) },
    h("h2", {}, t(`tile_${name}`)),
    value,
    note,
    spark.element,
  );
  const show = (newValue, newNote) => {
    setText(value, newValue);
    setText(note, newNote);
  };
  return { element, spark, show };
}

const card = (title, ...body) => h("section", { class: "pz-card" }, h("h2", {}, title), body);

function summary(state, used, total) {
  const memory = t("sentence_memory", { used: bytes(used), total: bytes(total) });
  const engines = liveEngines(state);
  if (!engines.length) return `${word("sentence", state.state)} ${memory} ${alertSentence(state)}`.trim();
  const now = t(engines.length > 1 ? "sentence_models" : "sentence_model", {
    state: word("state", state.state),
    models: engines.map((engine) => engine.model_id).join(", "),
  });
  const { running, waiting } = traffic(state);
  const load = loadingEngine(state)
    ? ""
    : running + waiting
      ? t("sentence_traffic", { running, waiting })
      : t("sentence_idle");
  return [now, memory, load, alertSentence(state)].filter(Boolean).join(" ");
}

/** Nothing where the server does not tell of alerts. */
function alertSentence({ alerts }) {
  if (!alerts) return "";
  const { firing, unacknowledged } = alerts;
  if (firing) return t("ov_alerts_firing", { n: number(firing) });
  return unacknowledged ? t("ov_alerts_unacknowledged", { n: number(unacknowledged) }) : t("ov_no_alerts");
}

const traffic = (state) => ({ running: sumOf(state, "running") ?? 0, waiting: sumOf(state, "waiting") ?? 0 });

const gpuLine = (gpu) =>
  h(
    "p",
    { class: "pz-hint" },
    gpu.available
      ? `${gpu.name}: ${bytes(gpu.memory_used_bytes)} / ${bytes(gpu.memory_total_bytes)}`
      : t("gpu_not_available", { reason: gpuReason(gpu.reason) }),
  );

function loadingCard(job, progress) {
  const share = progressOf(job) ?? progress;
  return h(
    "section",
    { class: "pz-card pz-hero", "aria-live": "polite" },
    h("h2", {}, t(job.kind === "pull" ? "pulling_title" : "loading_title", { model: job.subject })),
    h("progress", { class: "pz-progress", max: 1, value: share ?? undefined, "aria-label": t("progress") }),
    h("p", { class: "pz-hint pz-figure" }, stageText(job)),
  );
}

/** Where the way begins; who has been here before needs no steps. */
function firstSteps(model, error, known) {
  const step = (n, title, text) =>
    h("li", {}, h("span", { class: "pz-step" }, n), h("div", {}, h("strong", {}, title), h("p", {}, text)));
  return h(
    "section",
    { class: "pz-card pz-hero pz-first" },
    h("h2", {}, t(known ? "ov_load_again" : "first_title")),
    error ? h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, error)) : null,
    known
      ? null
      : h(
          "ol",
          { class: "pz-steps" },
          step(1, t("first_1"), t("first_1_text")),
          step(2, t("first_2"), t("first_2_text")),
          step(3, t("first_3"), t("first_3_text")),
        ),
    h(
      "div",
      { class: "pz-actions" },
      model ? button(t("load_model", { model }), () => bringUp(model), { kind: "primary", iconName: "play" }) : null,
      h("a", { class: "pz-button pz-secondary", href: "/models" }, t("see_models")),
    ),
  );
}

/** A model is ready and nobody has asked it anything yet. */
const nextStep = () =>
  h(
    "section",
    { class: "pz-card pz-hero pz-first" },
    h("h2", {}, t("first_2")),
    h("p", {}, t("first_2_text")),
    h(
      "div",
      { class: "pz-actions" },
      h("a", { class: "pz-button pz-primary", href: "/chat" }, icon("chat"), h("span", {}, t("open_chat"))),
    ),
  );

export function mount(element) {
  return new Overview(element);
}
