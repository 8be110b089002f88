// Memory by part over time, and the numbers now with what each means. Owns the choice of device and of the next load.

import { api } from "./api.js";
import { button, fill, h } from "./dom.js";
import { bytes, t } from "./i18n.js";
import { live } from "./live.js";
import { isAlarming, MEMORY_COLUMNS, partsAt, PARTS } from "./memory_parts.js";
import { memoryTable } from "./memory_table.js";
import { createPlotCard, inGib } from "./plot_card.js";
import { createPlotGrid } from "./plot_grid.js";
import { bandsOf, columnsOf, FINISHED, KV_BLOCKS } from "./plot_specs.js";
import { attempt } from "./toast.js";

export const COLUMNS = [...MEMORY_COLUMNS, ...columnsOf(KV_BLOCKS, FINISHED)];
export const BANDS = bandsOf(KV_BLOCKS);

const NARROW = matchMedia("(max-width: 820px)"); // there the table below is the legend
const FAINT = new Set(["kv_free", "free"]);

class MemoryTab {
  #device = null; // "host" | "gpu"; null until it is known where the engines are
  #places = new Set(); // of the engines' tensors in this time: "cpu", "cuda"
  #next = null; // what a load would take, in the server's words
  #nextName = "";
  #shown = null;
  #newest = null;
  #cache = new WeakMap();

  constructor(element, tab) {
    this.tab = tab;
    this.card = createPlotCard("memory_parts", this.#spec());
    this.grid = createPlotGrid({ kv: KV_BLOCKS, finished: FINISHED }, tab);
    this.devices = ["host", "gpu"].map((name) =>
      button(t(`mon_device_${name}`), () => this.#choose(name), { kind: "segment", "data-device": name }),
    );
    this.select = h("select", { class: "pz-field", onchange: () => this.#estimate(this.select.value) });
    this.verdict = h("span", { class: "pz-hint", role: "status" });
    this.note = h("p", { class: "pz-hint" });
    this.table = h("div", { class: "pz-table-wrap pz-card", dataset: { table: "memory" } });
    fill(
      element,
      h(
        "div",
        { class: "pz-row pz-memory-controls" },
        h("div", { class: "pz-segments", role: "group", "aria-label": t("mon_device") }, this.devices),
        h("label", { class: "pz-row" }, h("span", {}, t("mon_next_load")), this.select),
        this.verdict,
      ),
      this.note,
      this.card.element,
      this.table,
      this.grid.element,
    );
    this.leave = [
      tab.onWindow((window, view) => this.#draw(window, view)),
      tab.onNewest((window) => this.#showNewest(window)),
      live.subscribe("events", (event) => ["load", "unload"].includes(event.kind) && this.#learn()),
    ];
    this.#learn();
  }

  destroy() {
    for (const each of this.leave) each();
    this.card.destroy();
    this.grid.destroy();
  }

  #spec() {
    const lines = PARTS.map(([name, hue]) => ({
      key: `part_${name}`,
      hue,
      stack: true,
      faint: FAINT.has(name),
      width: name === "free" ? 0.5 : 1.5,
      dash: name === "kv_free" ? "dot" : "solid",
      values: (window) => this.#column(window, (found) => found.parts[name]),
      hueFor: name === "unattributed" ? () => (isAlarming(this.#now()) ? "error" : hue) : null,
    })).reverse();
    const constant = (read) => (window) => this.#column(window, read);
    return {
      unit: "GiB",
      of: "server",
      wide: true,
      legend: () => !NARROW.matches,
      now: constant((found) => found.used),
      lines: [
        ...lines,
        { key: "memory_total", hue: "text", dash: "dash", width: 1, values: constant((found) => found.total) },
        { key: "next_load", hue: "warn", dash: "dot", values: (window) => this.#nextLine(window) },
      ],
    };
  }

  #column(window, read) {
    return this.#found(window).map((found) => {
      const value = found === null ? null : read(found);
      return value === null || value === undefined ? null : inGib(value);
    });
  }

  /** The parts at each step, made once for all lines. */
  #found(window) {
    if (!this.#cache.has(window)) {
      const find = (_, i) => partsAt(window, i, this.#device ?? "host", this.#enginesOn());
      this.#cache.set(window, window.t.map(find));
    }
    return this.#cache.get(window);
  }

  #enginesOn() {
    return this.#places.has("cuda") ? "cuda" : "cpu";
  }

  #now() {
    const window = this.#newest ?? this.#shown?.window;
    return window ? (this.#found(window).findLast((found) => found !== null) ?? null) : null;
  }

  /** Where a load would take memory to, as a level over the whole time; nothing where no estimate is known. */
  #nextLine(window) {
    const used = this.#now()?.used ?? null;
    const here = this.#next && (this.#next.device === "cuda") === (this.#device === "gpu");
    const level = here && used !== null ? inGib(used + this.#next.total_bytes) : null;
    return window.t.map(() => level);
  }

  #draw(window, view) {
    this.#shown = { window, view };
    this.#cache = new WeakMap(); // a live second may have changed the last step
    this.card.draw(window, view);
    const hasGpu = window.get("gpu_memory_total_bytes").some((value) => value !== null);
    this.devices[1].disabled = !hasGpu;
    this.devices[1].title = hasGpu ? "" : t("mon_no_gpu_memory");
    this.#showTable();
  }

  #showNewest(window) {
    this.#newest = window;
    this.card.showNewest(window);
    this.#showTable();
  }

  #showTable() {
    fill(this.table, memoryTable(this.#now(), this.#device ?? "host"));
    const mixed = this.#places.size > 1;
    fill(this.note, mixed ? t("mon_mixed_devices") : t("mon_memory_intro"));
  }

  /** Where the engines are, and what could be loaded next. */
  async #learn() {
    const { since, until } = this.tab.range();
    await attempt(async () => {
      const [runs, models] = await Promise.all([
        api.engineRuns({ since: Math.max(0, since), until, limit: 50 }),
        api.models(),
      ]);
      const mine = this.tab.engine();
      const devices = runs.filter((run) => !mine || run.id === mine).map((run) => run.device?.split(":")[0]);
      this.#places = new Set(devices.filter(Boolean));
      this.#showModels(models);
      this.#choose(this.#device ?? (this.#places.has("cuda") ? "gpu" : "host"));
    });
  }

  #showModels(models) {
    const loadable = models.filter((model) => model.path && !model.engine_id && !model.error);
    const before = this.select.value;
    fill(
      this.select,
      h("option", { value: "" }, t("mon_next_none")),
      loadable.map((model) => h("option", { value: model.id }, model.id)),
    );
    this.select.value = loadable.some((model) => model.id === before) ? before : "";
    if (!this.select.value && loadable.length === 1) this.select.value = loadable[0].id;
    this.#estimate(this.select.value);
  }

  async #estimate(model) {
    this.#nextName = model;
    this.#next = model ? ((await attempt(() => api.estimate(model, {}))) ?? null) : null;
    if (this.#nextName !== model) return;
    const found = this.#next;
    fill(
      this.verdict,
      found &&
        t(found.fits ? "mon_next_fits" : "mon_next_short", {
          needs: bytes(found.total_bytes),
          available: bytes(found.available_bytes),
          short: bytes(found.short_by_bytes),
        }),
    );
    this.verdict.classList.toggle("pz-bad", Boolean(found && !found.fits));
    this.#redraw();
  }

  #choose(device) {
    this.#device = device;
    for (const node of this.devices) node.setAttribute("aria-pressed", String(node.dataset.device === device));
    this.#redraw();
  }

  #redraw() {
    if (this.#shown) this.#draw(this.#shown.window, this.#shown.view);
  }
}

export function mount(element, tab) {
  return new MemoryTab(element, tab);
}
