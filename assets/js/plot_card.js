// A plot with its title, its newest value (or the one pointed at), its table twin and its files.
// Knows how lines are made from a window; what is measured is the caller's.

import { fill, h, iconButton, setText } from "./dom.js";
import { bytes, clock, number, t } from "./i18n.js";
import { csvText, fileName, saveText } from "./plot_export.js";
import { createPlot } from "./plots.js";

const GIB = 2 ** 30;

/** A value with its unit, as people read it. */
function worded(value, { unit, digits = fitting(value) }) {
  if (value === null || value === undefined) return "–";
  if (unit === "GiB") return bytes(value * GIB);
  return `${number(value, digits)}${unit && ` ${unit}`}`;
}

const fitting = (value) =>
  Number.isInteger(value) || Math.abs(value) >= 10 ? 0 : Math.abs(value) >= 1 ? 1 : 3;

/** The readings of a step, changed alike; null stays null. */
export const mapped = (values, change) => values.map((value) => (value === null ? null : change(value)));

/**
 * spec: {unit, digits, of: "engine" | "server", none, logs, wide, legend(), now(window), lines: [{key, hue, source,
 * hueFor(), values(window), band(window), area(window), ...}]}; title, definition and the lines' `name` where they are
 * not the texts of the plot's name. area: [lows, highs] that are drawn only; band: the readings' own.
 * {element, draw(window, view), showNewest(window), destroy()}
 */
export function createPlotCard(name, spec) {
  const title = spec.title ?? t(`plot_${name}`);
  const definition = spec.definition ?? t(`plot_${name}_definition`);
  const lines = spec.lines.map((line) => ({ ...line, name: line.name ?? t(`line_${line.key}`) }));
  const plot = createPlot({ title, unit: spec.unit, series: lines, legend: spec.legend });
  const now = h("strong", { class: "pz-figure pz-plot-now", dataset: { plot: name } }, "–");
  const table = h("div", { class: "pz-table-wrap" });
  const twin = h("details", { class: "pz-twin", ontoggle: () => fillTable() }, h("summary", {}, t("mon_table")), table);
  const off = h("p", { class: "pz-empty pz-plot-off", hidden: true });
  const log = h(
    "button",
    { type: "button", class: "pz-button pz-quiet pz-log", "aria-pressed": "false", onclick: () => toggleLog() },
    t("mon_log"),
  );
  const element = h(
    "section",
    { class: `pz-card pz-plot-card ${spec.wide ? "pz-plot-wide" : ""}`, dataset: { card: name } },
    h(
      "div",
      { class: "pz-row pz-plot-head" },
      h("h2", { class: "pz-grow", title: definition }, title),
      now,
      spec.logs ? log : null,
      iconButton("download", t("mon_csv_of", { title }), () => saveCsv(), { "data-export": "csv" }),
      iconButton("image", t("mon_png_of", { title }), () => saveImage(), { "data-export": "png" }),
    ),
    plot.element,
    off,
    twin,
  );
  let shown = null; // [window, columns, bands, view]
  let newest = null;
  let pointed = null;
  let leaveCrosshair = null;

  function draw(window, view) {
    for (const line of lines) if (line.hueFor) line.hue = line.hueFor();
    const columns = lines.map((line) => line.values(window));
    const bands = lines.map((line) => line.band?.(window) ?? null);
    shown = { window, columns, bands, view };
    const areas = lines.map((line, i) => bands[i] ?? line.area?.(window) ?? null);
    plot.draw(window.t, columns, { ...view, gaps: gapsOf(view) }, areas);
    leaveCrosshair ??= view.crosshair?.onMove((time) => point(time)) ?? null;
    if (twin.open) fillTable();
    showNow();
  }

  const gapsOf = (view) => view.gaps?.[spec.of ?? "engine"] ?? [];

  function showNewest(window) {
    newest = window;
    showNow();
  }

  function point(time) {
    pointed = time;
    showNow();
  }

  function showNow() {
    if (!shown) return;
    now.classList.toggle("pz-pointed", pointed !== null);
    if (pointed !== null) {
      const at = shown.window.t.findLastIndex((time) => time <= pointed);
      setText(now, worded(leading(shown.window)[at] ?? null, spec));
      now.title = clock(pointed);
      return;
    }
    const value = leading(newest ?? shown.window).at(-1) ?? null;
    // an empty newest second stays empty: an old figure is not the newest
    const absent = value === null && spec.none;
    now.classList.toggle("pz-plot-none", Boolean(absent));
    setText(now, absent ? t(spec.none) : worded(value, spec));
    now.title = definition;
  }

  const leading = (window) => (spec.now ?? spec.lines[0].values)(window);

  function fillTable() {
    if (!shown || !twin.open) return;
    const heads = ["mon_line", "mon_newest", "mon_smallest", "mon_mean", "mon_largest"];
    fill(
      table,
      h("p", { class: "pz-hint" }, definition),
      h(
        "table",
        { class: "pz-table" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((key) => h("th", { scope: "col" }, t(key))),
          ),
        ),
        h(
          "tbody",
          {},
          lines.map((line, i) => row(line, shown.columns[i], shown.bands[i])),
        ),
      ),
    );
  }

  function row(line, values, band) {
    const known = values.filter((value) => value !== null);
    const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    const figures = [values.at(-1) ?? null, extreme(band?.[0] ?? known, Math.min), mean];
    figures.push(extreme(band?.[1] ?? known, Math.max));
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, line.name),
      figures.map((value) => h("td", { class: "pz-figure" }, worded(value, spec))),
    );
  }

  function saveCsv() {
    if (!shown) return;
    const { window, columns, bands, view } = shown;
    const gaps = gapsOf(view).map(({ from, to, reason }) => t("mon_gap", { from: clock(from), to: clock(to), reason }));
    const notes = [t("mon_csv_step", { step: window.stepS }), ...(view.notes ?? []), ...gaps];
    const named = lines.map((line) => ({ name: line.name, definition: lineDefinition(line) }));
    const text = csvText({ title, definition, unit: spec.unit, notes, lines: named, times: window.t, columns, bands });
    saveText(`${fileName(name, view.window[1])}.csv`, text);
  }

  const lineDefinition = (line) => (line.source ? t("mon_csv_column", { column: line.source }) : definition);

  const saveImage = () => shown && plot.saveImage(fileName(name, shown.view.window[1]));

  function toggleLog() {
    const on = log.getAttribute("aria-pressed") !== "true";
    log.setAttribute("aria-pressed", String(on));
    plot.setLog(on);
  }

  /** In place of the plot: why there is none. */
  function showOff(reason) {
    off.hidden = reason === null;
    plot.element.hidden = twin.hidden = reason !== null;
    for (const node of element.querySelectorAll("[data-export]")) node.disabled = reason !== null;
    if (reason !== null) setText(off, reason);
  }

  function destroy() {
    leaveCrosshair?.();
    plot.destroy();
  }

  return { element, draw, showNewest, showOff, destroy };
}

function extreme(values, choose) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => choose(a, b)) : null;
}

/** A line of a column as it is, with its band; `change` turns its unit into the plot's. */
export const columnLine = (key, hue, column, { change = (x) => x, ...style } = {}) => ({
  key,
  hue,
  source: column,
  ...style,
  values: (window) => mapped(window.get(column), change),
  band: (window) => window.band(column)?.map((values) => mapped(values, change)) ?? null,
});

export const inGib = (value) => value / GIB;
export const inMs = (value) => value * 1000;
