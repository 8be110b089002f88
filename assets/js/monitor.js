// The monitor page: history and the newest second of what is measured. Figures say what they count.

import { api } from "./api.js";
import { button, fill, h, icon, setText } from "./dom.js";
import { bytes, clock, number, t } from "./i18n.js";
import { live } from "./live.js";
import { createPlot } from "./plots.js";
import { SampleWindow } from "./series.js";
import { attempt } from "./toast.js";

const GIB = 2 ** 30;
const MOST_POINTS = 1500;
const RANGES = { "5m": 300, "1h": 3600, "24h": 86400, "7d": 7 * 86400 };
const STEPS_S = [1, 10, 60, 300, 900];

const inGib = (value) => (value === null ? null : value / GIB);
const each = (window, name, change = (x) => x) => window.get(name).map(change);

/** Per plot: its lines (stacked ones from the top down), and for each line the values from a window. */
const PLOTS = {
  tokens: {
    unit: "",
    lines: [
      { key: "generation", hue: "tokens", fill: true, values: (w) => each(w, "generation_tokens_per_s") },
      { key: "prompt", hue: "runtime", dash: "dash", values: (w) => each(w, "prompt_tokens_per_s") },
    ],
  },
  kv: {
    unit: "",
    lines: [
      { key: "kv_used", hue: "kv", fill: true, values: (w) => each(w, "kv_blocks_used") },
      { key: "kv_cached", hue: "cached", dash: "dot", values: (w) => each(w, "kv_blocks_cached") },
      { key: "kv_total", hue: "muted", dash: "dash", width: 1, values: (w) => each(w, "kv_blocks_total") },
    ],
  },
  memory: {
    unit: "GiB",
    now: (w) => each(w, "host_memory_used_bytes", inGib),
    lines: [
      { key: "other", hue: "other", stack: true, values: otherProcesses },
      { key: "app", hue: "app", stack: true, values: (w) => each(w, "app_process_bytes", inGib) },
      { key: "engine", hue: "weights", stack: true, values: (w) => each(w, "engine_process_bytes", inGib) },
      {
        key: "memory_total",
        hue: "muted",
        dash: "dash",
        width: 1,
        values: (w) => each(w, "host_memory_total_bytes", inGib),
      },
    ],
  },
  requests: {
    unit: "",
    lines: [
      { key: "running", hue: "tokens", steps: true, values: (w) => each(w, "num_requests_running") },
      { key: "waiting", hue: "draft", steps: true, dash: "dash", values: (w) => each(w, "num_requests_waiting") },
    ],
  },
  acceptance: {
    unit: "%",
    none: "line_nothing_drafted",
    lines: [{ key: "acceptance", hue: "draft", values: acceptance }],
  },
  cpu: { unit: "%", lines: [{ key: "cpu", hue: "runtime", fill: true, values: (w) => each(w, "host_cpu_percent") }] },
  gpu: {
    unit: "GiB",
    lines: [
      { key: "gpu_used", hue: "weights", fill: true, values: (w) => each(w, "gpu_memory_used_bytes", inGib) },
      {
        key: "gpu_total",
        hue: "muted",
        dash: "dash",
        width: 1,
        values: (w) => each(w, "gpu_memory_total_bytes", inGib),
      },
    ],
  },
};

function otherProcesses(window) {
  const [engine, app] = [window.get("engine_process_bytes"), window.get("app_process_bytes")];
  return each(window, "host_memory_used_bytes").map((used, i) =>
    used === null ? null : Math.max(0, used - (engine[i] ?? 0) - (app[i] ?? 0)) / GIB,
  );
}

/** Accepted of drafted tokens over each step, in percent; a step in which nothing was drafted has no such figure. */
function acceptance(window) {
  const accepted = window.get("accepted_tokens_per_s");
  return each(window, "drafted_tokens_per_s").map((drafted, i) =>
    drafted && accepted[i] !== null ? (100 * accepted[i]) / drafted : null,
  );
}

class Monitor {
  #range = "5m";
  #revision = 0;
  #window = null;
  #newest = null;
  #paused = false;
  #gpu = null;

  constructor(element) {
    const asked = new URLSearchParams(location.search).get("range");
    if (asked in RANGES) this.#range = asked;
    this.ranges = Object.keys(RANGES).map((name) =>
      button(t(`range_${name}`), () => this.#choose(name), { kind: "segment", "data-range": name }),
    );
    this.pause = button("", () => this.#togglePause(), { class: "pz-button pz-secondary pz-pause" });
    this.note = h("p", { class: "pz-sentence", role: "status" });
    this.cards = Object.fromEntries(Object.entries(PLOTS).map(([name, spec]) => [name, plotCard(name, spec)]));
    fill(
      element,
      h(
        "div",
        { class: "pz-page-head pz-row" },
        h("div", { class: "pz-grow" }, h("h1", {}, t("nav_monitor")), this.note),
        h("div", { class: "pz-segments", role: "group", "aria-label": t("time_range") }, this.ranges),
        this.pause,
      ),
      h(
        "div",
        { class: "pz-plots" },
        Object.values(this.cards).map((card) => card.element),
      ),
    );
    this.#listen();
    this.#choose(this.#range);
  }

  #listen() {
    live.subscribe("samples", (sample) => {
      // engine_run_id null: all engines together; the rows of single engines are for panes that tell them apart
      if (this.#paused || !this.#window || sample.engine_run_id !== null) return;
      this.#newest = alone(sample);
      this.#window.add(sample);
      this.#draw();
    });
    live.subscribe("header", (state) => {
      this.#gpu = state.gpu;
      this.#showGpu();
    });
    live.onReconnect(() => this.#paused || attempt(() => this.#fetch()));
  }

  #choose(name) {
    this.#range = name;
    this.#revision += 1;
    history.replaceState(null, "", `${location.pathname}?range=${name}`);
    for (const node of this.ranges) node.setAttribute("aria-pressed", String(node.dataset.range === name));
    this.#paused = false;
    this.#showPause();
    return attempt(() => this.#fetch());
  }

  async #fetch() {
    const span = RANGES[this.#range];
    const now = Date.now() / 1000;
    const step = STEPS_S.find((candidate) => span / candidate <= MOST_POINTS) ?? STEPS_S.at(-1);
    const found = await api.samples(now - span, now, step);
    if (RANGES[this.#range] !== span) return;
    this.#window = new SampleWindow(span, found);
    this.#draw();
  }

  #togglePause() {
    this.#paused = !this.#paused;
    this.#showPause();
    if (!this.#paused) attempt(() => this.#fetch());
  }

  #showPause() {
    fill(this.pause, icon(this.#paused ? "play" : "pause"), h("span", {}, t(this.#paused ? "resume" : "pause")));
    this.pause.setAttribute("aria-pressed", String(this.#paused));
  }

  #draw() {
    const window = this.#window;
    const end = Math.max(Date.now() / 1000, window.t.at(-1) ?? 0);
    const view = { window: [end - window.spanS, end], revision: `${this.#range}.${this.#revision}` };
    for (const [name, spec] of Object.entries(PLOTS)) {
      const card = this.cards[name];
      if (name === "gpu" && !this.#gpu?.available) continue;
      const columns = spec.lines.map((line) => line.values(window));
      card.plot.draw(window.t, columns, view);
      setText(card.now, latest((spec.now ?? spec.lines[0].values)(this.#newest ?? window), spec));
    }
    const first = window.firstKnown("host_memory_used_bytes");
    setText(
      this.note,
      first === null ? t("no_samples") : t("samples_since", { since: clock(first), step: period(window.stepS) }),
    );
  }

  #showGpu() {
    const { plot, off } = this.cards.gpu;
    const available = Boolean(this.#gpu?.available);
    plot.element.hidden = !available;
    off.hidden = available;
    if (!available) setText(off, t("gpu_not_available", { reason: this.#gpu?.reason ?? "" }));
  }
}

/** The newest sample alone: in a step of a long range it would hide among older ones. */
const alone = ({ t: time, columns }) =>
  new SampleWindow(1, {
    t: [time],
    step_s: 1,
    columns: Object.fromEntries(Object.entries(columns).map(([name, value]) => [name, [value ?? null]])),
  });

const period = (step) => (step < 60 ? `${step} s` : `${step / 60} min`);

function latest(values, { unit, none }) {
  const value = values.at(-1) ?? null;
  if (value === null) return none ? t(none) : "–"; // also where there was one before: an old figure is not the newest
  if (unit === "GiB") return bytes(value * GIB);
  return `${number(value, value < 10 && !Number.isInteger(value) ? 1 : 0)}${unit && ` ${unit}`}`;
}

function plotCard(name, spec) {
  const title = t(`plot_${name}`);
  const plot = createPlot({
    title,
    unit: spec.unit,
    series: spec.lines.map((line) => ({ ...line, name: t(`line_${line.key}`) })),
  });
  const now = h("strong", { class: "pz-figure pz-plot-now", dataset: { plot: name } }, "–");
  const off = h("p", { class: "pz-empty pz-plot-off", hidden: true });
  const element = h(
    "section",
    { class: "pz-card pz-plot-card" },
    h("div", { class: "pz-row" }, h("h2", { class: "pz-grow", title: t(`plot_${name}_definition`) }, title), now),
    plot.element,
    off,
  );
  return { element, plot, now, off };
}

export function mount(element) {
  return new Monitor(element);
}
