// The front page: one sentence, four tiles with the last 15 minutes, the latest requests and events.

import { api } from "./api.js";
import { button, fill, h, icon, setText } from "./dom.js";
import { liveEngines, loadingEngine, servingEngines, sumOf } from "./engine_state.js";
import { bytes, clock, number, percent, rate, seconds, t, timeAgo, word } from "./i18n.js";
import { bringUp, bringingUp, latestBringUp, progressOf, stageText, watchJobs } from "./jobs.js";
import { live } from "./live.js";
import { partsLegend } from "./memory_bar.js";
import { createSparkline } from "./sparkline.js";
import { attempt } from "./toast.js";

const SPAN_S = 900;
const STEP_S = 5;
const SHOWN_ROWS = 8;

const TILES = {
  tokens: { hue: "tokens", column: "generation_tokens_per_s" },
  ttft: { hue: "runtime", column: null },
  kv: { hue: "kv", column: "kv_blocks_used" },
  memory: { hue: "weights", column: "host_memory_used_bytes" },
};

class Overview {
  #header = null;
  #fetched = false;
  #requests = [];
  #events = [];
  #samples = { t: [], columns: {} };

  constructor(element) {
    this.sentence = h("p", { class: "pz-sentence" });
    this.hero = h("div", {});
    this.tiles = Object.fromEntries(Object.entries(TILES).map(([name, { hue }]) => [name, createTile(name, hue)]));
    this.requests = h("div", { class: "pz-table-wrap" });
    this.events = h("ul", { class: "pz-events" });
    this.facts = h("div", { class: "pz-facts" });
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
        card(t("recent_requests"), this.requests),
        h("div", { class: "pz-stack" }, card(t("memory_by_part"), this.facts), card(t("events"), this.events)),
      ),
    );
    this.#listen();
  }

  #listen() {
    live.subscribe("header", (state) => {
      this.#header = state;
      this.#drawState();
    });
    live.subscribe("requests", (row) => {
      this.#requests = [row, ...this.#requests.filter((other) => other.id !== row.id)].slice(0, 200);
      this.#drawRequests();
    });
    live.subscribe("events", (event) => {
      this.#events = [event, ...this.#events].slice(0, SHOWN_ROWS);
      this.#drawEvents();
    });
    watchJobs(() => this.#drawState());
    const refresh = () => attempt(() => this.#fetch());
    live.onReconnect(refresh);
    refresh();
    setInterval(() => document.hidden || this.#tick(), STEP_S * 1000);
  }

  async #fetch() {
    [this.#requests, this.#events] = await Promise.all([
      api.requests(200),
      api.events(SHOWN_ROWS),
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
    return this.#requests.filter((row) => row.created_at >= since && typeof row.ttft_s === "number").reverse();
  }

  #drawState() {
    const state = this.#header;
    if (!state?.memory) return;
    const { total_bytes: total, available_bytes: available, parts } = state.memory;
    const used = total - available;
    setText(this.sentence, summary(state, used, total));
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
    const job = bringingUp(loading?.model_id ?? state.default_model_id);
    const error = latestBringUp(state.default_model_id)?.error;
    const idle = ["no_model", "failed"].includes(state.state);
    const unused = this.#fetched && !this.#requests.length && servingEngines(state).length > 0;
    const key = JSON.stringify([idle, unused, job ? [job.stage, job.done, job.message] : error]);
    if (key === this.heroKey) return;
    this.heroKey = key;
    if (job) fill(this.hero, loadingCard(job, loading?.progress));
    else if (idle) fill(this.hero, firstSteps(state.default_model_id, error));
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
    const rows = this.#requests.slice(0, SHOWN_ROWS);
    fill(this.requests, rows.length ? requestTable(rows) : h("p", { class: "pz-empty" }, t("no_requests_yet")));
  }

  #drawEvents() {
    const rows = this.#events.map((event) =>
      h(
        "li",
        { "data-severity": event.severity },
        h("time", { class: "pz-figure", title: clock(event.t) }, timeAgo(event.t)),
        h("span", {}, event.message),
      ),
    );
    fill(this.events, rows.length ? rows : h("li", { class: "pz-empty" }, t("no_events_yet")));
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
  if (!engines.length) return `${word("sentence", state.state)} ${memory}`;
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
  return `${now} ${memory} ${load}`.trim();
}

const traffic = (state) => ({ running: sumOf(state, "running") ?? 0, waiting: sumOf(state, "waiting") ?? 0 });

const gpuLine = (gpu) =>
  h(
    "p",
    { class: "pz-hint" },
    gpu.available
      ? `${gpu.name}: ${bytes(gpu.memory_used_bytes)} / ${bytes(gpu.memory_total_bytes)}`
      : t("gpu_not_available", { reason: gpu.reason }),
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

function firstSteps(model, error) {
  const step = (n, title, text) =>
    h("li", {}, h("span", { class: "pz-step" }, n), h("div", {}, h("strong", {}, title), h("p", {}, text)));
  return h(
    "section",
    { class: "pz-card pz-hero pz-first" },
    h("h2", {}, t("first_title")),
    error ? h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, error)) : null,
    h(
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

function requestTable(rows) {
  const heads = ["when", "model", "tokens", "tokens_per_s", "ttft", "ended"];
  const cells = (row) => [
    timeAgo(row.created_at),
    row.model_id,
    t("in_out", { input: number(row.num_prompt_tokens), output: number(row.num_output_tokens) }),
    rate(row.tokens_per_s),
    seconds(row.ttft_s),
    outcome(row),
  ];
  return h(
    "table",
    { class: "pz-table" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((name) => h("th", { scope: "col" }, t(name))),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          {},
          cells(row).map((cell, i) => h("td", { "data-label": t(heads[i]) }, cell)),
        ),
      ),
    ),
  );
}

function outcome(row) {
  if (row.state === "failed") return h("span", { class: "pz-bad", title: row.error }, word("finish", "error"));
  return row.finish_reason ? word("finish", row.finish_reason) : word("request", row.state);
}

export function mount(element) {
  return new Overview(element);
}
