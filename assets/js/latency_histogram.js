// How the latencies of a range spread: a histogram with its quantiles marked, for the first token and between tokens.
// Owns asking for it; the buckets and the quantiles are the server's.

import { api } from "./api.js";
import { fill, h, iconButton, setText } from "./dom.js";
import { number, seconds, t } from "./i18n.js";
import { fileName, saveText } from "./plot_export.js";
import { axis, baseLayout, withAlpha } from "./plot_traces.js";
import { CONFIG, plotly } from "./plots.js";
import { colour, onThemeChange } from "./theme.js";
import { attempt } from "./toast.js";

const FRESH_MS = 15_000;
const KINDS = { ttft: "runtime", itl: "tokens" };
const QUANTILES = ["p50", "p95", "p99"];

/** {elements, destroy()}: one card a kind, of the tab's range and engine. */
export function createHistogramCard(tab) {
  const cards = Object.entries(KINDS).map(([kind, hue]) => createCard(kind, hue));
  let askedAt = 0;
  let revision = null;
  let asking = 0;

  const leave = tab.onWindow((_, view) => {
    const { live } = tab.range();
    if (view.revision === revision && !(live && Date.now() - askedAt > FRESH_MS)) return;
    revision = view.revision;
    askedAt = Date.now();
    read(view.window);
  });

  async function read([since, until]) {
    const mine = (asking += 1);
    const wish = { since: Math.max(0, since), until, engine_run_id: tab.engine() };
    const found = await attempt(() => api.latencies(wish));
    if (found && mine === asking) for (const card of cards) card.draw(found);
  }

  return {
    elements: cards.map((card) => card.element),
    destroy() {
      leave();
      asking += 1;
      for (const card of cards) card.destroy();
    },
  };
}

function createCard(kind, hue) {
  const title = t(`plot_${kind}_histogram`);
  const definition = t(`plot_${kind}_histogram_definition`);
  const figure = h("div", { class: "pz-plot", role: "img", "aria-label": title });
  const none = h("p", { class: "pz-empty pz-plot-off", hidden: true }, t("mon_no_latencies"));
  const marks = h("p", { class: "pz-figure pz-hint pz-quantiles" });
  const table = h("div", { class: "pz-table-wrap" });
  const twin = h("details", { class: "pz-twin", ontoggle: () => showTable() }, h("summary", {}, t("mon_table")), table);
  const element = h(
    "section",
    { class: "pz-card pz-plot-card", dataset: { card: `${kind}_histogram` } },
    h(
      "div",
      { class: "pz-row pz-plot-head" },
      h("h2", { class: "pz-grow", title: definition }, title),
      iconButton("download", t("mon_csv_of", { title }), () => saveCsv(), { "data-export": "csv" }),
      iconButton("image", t("mon_png_of", { title }), () => saveImage(), { "data-export": "png" }),
    ),
    marks,
    figure,
    none,
    twin,
  );
  let shown = null;
  let gone = false;

  function draw(found) {
    shown = found;
    const summary = found[kind];
    none.hidden = summary.count > 0;
    figure.hidden = twin.hidden = summary.count === 0;
    setText(
      marks,
      summary.count
        ? t("mon_quantiles", {
            p50: seconds(summary.p50_s),
            p95: seconds(summary.p95_s),
            p99: seconds(summary.p99_s),
            n: number(summary.count),
          })
        : "",
    );
    showTable();
    plotly.then(paint);
  }

  function paint() {
    if (gone || !shown?.[kind].count) return;
    window.Plotly.react(figure, [bars(shown[kind], hue)], histogramLayout(shown[kind]), CONFIG);
  }

  function showTable() {
    if (!twin.open || !shown) return;
    fill(
      table,
      h(
        "table",
        { class: "pz-table" },
        h("thead", {}, h("tr", {}, ["mon_above", "mon_up_to", "mon_count"].map(headCell))),
        h("tbody", {}, shown[kind].buckets.map(bucketRow)),
      ),
    );
  }

  function saveCsv() {
    if (!shown) return;
    const summary = shown[kind];
    const rows = summary.buckets.map(({ low_s: low, high_s: high, count }) => [low, high ?? "", count].join(","));
    const quantiles = QUANTILES.map((q) => `# ${q} [s]: ${summary[`${q}_s`] ?? ""}`);
    const head = [`# ${title}`, `# ${definition}`, ...quantiles, "above [s],up to [s],count"];
    saveText(`${fileName(`${kind}-histogram`, shown.until)}.csv`, [...head, ...rows, ""].join("\n"));
  }

  function saveImage() {
    if (!shown?.[kind].count) return;
    const layout = { ...figure.layout, paper_bgcolor: colour("panel"), margin: { l: 60, r: 20, t: 70, b: 60 } };
    layout.title = { text: title, font: { size: 18, color: colour("text") }, x: 0.02 };
    const name = fileName(`${kind}-histogram`, shown.until);
    const image = { format: "png", width: 1280, height: 480, filename: name };
    window.Plotly.downloadImage({ data: figure.data, layout }, image);
  }

  const leaveTheme = onThemeChange(paint);
  return {
    element,
    draw,
    destroy() {
      gone = true;
      leaveTheme();
      if (figure._fullLayout) window.Plotly.purge(figure);
    },
  };
}

const headCell = (key) => h("th", { scope: "col" }, t(key));

const bucketRow = ({ low_s: low, high_s: high, count }) =>
  h(
    "tr",
    {},
    h("td", { class: "pz-figure" }, seconds(low)),
    h("td", { class: "pz-figure" }, high === null ? "–" : seconds(high)),
    h("td", { class: "pz-figure" }, number(count)),
  );

const NARROWEST = 10 ** -0.1; // of a bucket to the one before
const lowMs = ({ low_s: low, high_s: high }) => 1000 * (low || high * NARROWEST);
const highMs = ({ low_s: low, high_s: high }) => 1000 * (high ?? low / NARROWEST);

/** On a logarithmic axis a bar's place and width are those of its logarithms: all buckets look alike. */
function bars({ buckets }, hue) {
  const logs = buckets.map((bucket) => [Math.log10(lowMs(bucket)), Math.log10(highMs(bucket))]);
  return {
    type: "bar",
    x: logs.map(([low, high]) => (low + high) / 2),
    width: logs.map(([low, high]) => (high - low) * 0.94),
    y: buckets.map(({ count }) => count),
    customdata: buckets.map((bucket) => [lowMs(bucket), highMs(bucket)]),
    hovertemplate: `%{customdata[0]:.3~g} – %{customdata[1]:.3~g} ms: %{y}<extra></extra>`,
    marker: { color: withAlpha(colour(hue), 0.55), line: { color: colour(hue), width: 1 } },
  };
}

const ANCHORS = { p50: "center", p95: "right", p99: "left" }; // the last two often lie close together
const DASHES = { p50: "solid", p95: "dash", p99: "dot" };
const ROWS_PX = { p50: 0, p95: 12, p99: 24 };
const NICE = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6];

function histogramLayout(summary) {
  const known = QUANTILES.filter((name) => summary[`${name}_s`] !== null);
  const at = (name) => Math.log10(1000 * summary[`${name}_s`]);
  const text = (ms) => (ms < 1000 ? `${number(ms, ms < 1 ? 1 : 0)} ms` : `${number(ms / 1000)} s`);
  return {
    ...baseLayout(),
    showlegend: false,
    bargap: 0,
    margin: { l: 40, r: 8, t: 42, b: 24 }, // three rows of names: quantiles may lie on top of one another
    xaxis: { ...axis(), tickvals: NICE.map(Math.log10), ticktext: NICE.map(text), showgrid: false },
    yaxis: { ...axis(), rangemode: "tozero", nticks: 5 },
    shapes: known.map((name) => ({
      type: "line",
      xref: "x",
      yref: "paper",
      x0: at(name),
      x1: at(name),
      y0: 0,
      y1: 1,
      line: { color: colour("text"), width: 1.5, dash: DASHES[name] },
    })),
    annotations: known.map((name) => ({
      x: at(name),
      y: 1,
      xref: "x",
      yref: "paper",
      xanchor: ANCHORS[name],
      yanchor: "bottom",
      yshift: ROWS_PX[name],
      text: name,
      showarrow: false,
      font: { size: 11, color: colour("text") },
    })),
  };
}
