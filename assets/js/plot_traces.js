// What Plotly is told to draw: lines, areas, bands, event marks, gaps, axes. Pure functions of data and colours.
// Invariant: a gap stays a gap: no line, fill or band crosses it.

import { colour } from "./theme.js";

const FEW_POINTS = 12; // a line of one point is invisible
const LETTER_PX = 7; // words are shown where they fit
export const TOUCH = matchMedia("(hover: none)").matches;

// Times without a date line below them, and in no language's words.
const TIME_FORMATS = [
  { dtickrange: [null, 59999], value: "%H:%M:%S" },
  { dtickrange: [60000, 86399999], value: "%H:%M" },
  { dtickrange: [86400000, null], value: "%d/%m" },
];

/** Plotly reads tags in texts; what others wrote must stay text. */
export const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** All traces of a figure: for each line its band, its area and itself. */
export function figureTraces(series, times, columns, bands, { unit, log }) {
  const dates = times.map((time) => new Date(time * 1000));
  const heights = stacked(series, columns);
  return series
    .flatMap((line, i) => [
      log ? null : area(line, dates, heights[i]),
      bands?.[i] ? band(line, dates, bands[i]) : null,
      trace(line, dates, heights[i], columns[i], bands?.[i], unit),
    ])
    .filter(Boolean);
}

/** Where each line runs: a stacked one on top of those after it. Not Plotly's own stacking, which bridges gaps. */
function stacked(series, columns) {
  let below = null;
  const heights = [...columns];
  for (let i = series.length - 1; i >= 0; i -= 1) {
    if (!series[i].stack) continue;
    const base = below;
    below = columns[i].map((value, at) =>
      base === null ? value : value === null ? base[at] : value + (base[at] ?? 0),
    );
    heights[i] = below;
  }
  return heights;
}

/** What lies below a line, as a trace of its own: Plotly fills across the gaps of a line, here they fall to zero. */
function area(line, x, y) {
  if (!line.stack && !line.fill) return null;
  const hue = colour(line.hue);
  return {
    type: "scatter",
    mode: "lines",
    x,
    y: y.map((value) => value ?? 0),
    legendgroup: line.name,
    showlegend: false,
    hoverinfo: "skip",
    fill: "tozeroy",
    // a stacked area covers what lies behind it, so its colour must not let that through
    fillcolor: line.stack ? mixed(hue, colour("panel"), line.faint ? 0.16 : 0.5) : withAlpha(hue, 0.14),
    line: { width: 0 },
  };
}

/** Between the smallest and the largest reading of each step: one polygon for each stretch without a gap. */
function band(line, x, [low, high]) {
  const [xs, ys] = [[], []];
  for (const run of runs(low)) {
    for (const i of run) (xs.push(x[i]), ys.push(high[i]));
    for (const i of run.toReversed()) (xs.push(x[i]), ys.push(low[i]));
    (xs.push(null), ys.push(null));
  }
  return {
    type: "scatter",
    mode: "lines",
    x: xs,
    y: ys,
    legendgroup: line.name,
    showlegend: false,
    hoverinfo: "skip",
    fill: "toself",
    fillcolor: withAlpha(colour(line.hue), 0.22),
    line: { width: 0 },
  };
}

function runs(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (found.length && found.at(-1).at(-1) === i - 1) found.at(-1).push(i);
    else found.push([i]);
  });
  return found;
}

function trace(line, x, y, values, bounds, unit) {
  const suffix = unit && ` ${unit}`;
  const span = bounds ? ` (%{customdata[1]:.4~g} – %{customdata[2]:.4~g})` : "";
  return {
    type: "scatter",
    mode: y.filter((value) => value !== null).length <= FEW_POINTS ? "lines+markers" : "lines",
    name: line.name,
    x,
    y,
    customdata: bounds ? values.map((value, i) => [value, bounds[0][i], bounds[1][i]]) : values,
    connectgaps: false,
    legendgroup: line.name,
    marker: { size: 4, color: colour(line.hue) },
    line: {
      color: colour(line.hue),
      width: line.width ?? 1.75,
      dash: line.dash ?? "solid",
      shape: line.steps ? "hv" : "linear",
    },
    hovertemplate: `%{customdata${bounds ? "[0]" : ""}:.4~g}${suffix}${span}<extra>%{fullData.name}</extra>`,
  };
}

/** Events as marks along the top, on an axis of their own; their words show when pointed at. */
export function eventTrace(markers) {
  return {
    type: "scatter",
    mode: "markers",
    name: "",
    x: markers.map((each) => new Date(each.t * 1000)),
    y: markers.map(() => 0.97),
    yaxis: "y2",
    showlegend: false,
    marker: { symbol: "triangle-down", size: 9, color: markers.map((each) => colour(each.hue)) },
    text: markers.map((each) => plain(each.label)),
    hovertemplate: "%{text}<extra></extra>",
  };
}

function shapesOf(markers, gaps) {
  const across = { xref: "x", yref: "paper", y0: 0, y1: 1 };
  const lines = markers.map(({ t, hue }) => ({
    type: "line",
    ...across,
    x0: new Date(t * 1000),
    x1: new Date(t * 1000),
    line: { color: withAlpha(colour(hue), 0.55), width: 1, dash: "dot" },
  }));
  const voids = gaps.map(({ from, to }) => ({
    type: "rect",
    ...across,
    layer: "below",
    x0: new Date(from * 1000),
    x1: new Date(to * 1000),
    fillcolor: withAlpha(colour("muted"), 0.09),
    line: { width: 0 },
  }));
  return [...voids, ...lines];
}

/** Why nothing is drawn, where there is room to say so. */
function gapNotes(gaps, [start, end], widthPx) {
  return gaps
    .filter(({ from, to, reason }) => (widthPx * (to - from)) / (end - start) > LETTER_PX * reason.length)
    .map(({ from, to, reason }) => ({
      x: new Date(500 * (from + to)),
      y: 0.5,
      xref: "x",
      yref: "paper",
      text: plain(reason),
      showarrow: false,
      font: { size: 12, color: colour("muted") },
    }));
}

export function axis() {
  return {
    gridcolor: colour("grid"),
    linecolor: colour("line"),
    tickcolor: colour("line"),
    zeroline: false,
    automargin: true,
  };
}

/** `times`, `heights`: what a zoomed figure shows. */
export function figureLayout({ window, times, heights, revision, markers = [], gaps = [] }, options) {
  const { unit, min, log, legend, widthPx } = options;
  return {
    ...baseLayout(),
    uirevision: revision,
    hovermode: "x unified",
    shapes: shapesOf(markers, gaps),
    annotations: gapNotes(gaps, window, widthPx),
    showlegend: legend,
    xaxis: {
      ...axis(),
      type: "date",
      range: times ?? window.map((time) => new Date(time * 1000)),
      showgrid: false,
      nticks: 6,
      tickformatstops: TIME_FORMATS,
      hoverformat: "%d/%m %H:%M:%S",
    },
    yaxis: {
      ...axis(),
      type: log ? "log" : "linear",
      rangemode: min === 0 && !log ? "tozero" : "normal",
      ...(heights ? { range: heights } : { autorange: true }),
      nticks: 5,
      ticksuffix: unit && ` ${unit}`,
      ...(log ? { dtick: 1 } : {}),
    },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
}

export function baseLayout() {
  return {
    autosize: true,
    margin: { l: 40, r: 8, t: 8, b: 24 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "ui-sans-serif, system-ui, sans-serif", size: 12, color: colour("muted") },
    dragmode: TOUCH ? false : "zoom", // a finger scrolls the page
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("text") } },
    showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("text") },
  };
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** "#rrggbb" with an alpha, as Plotly wants it. */
export const withAlpha = (hex, alpha) => `rgba(${channels(hex).join(",")},${alpha})`;

/** Two "#rrggbb" mixed to an opaque colour. */
function mixed(hex, ground, share) {
  const under = channels(ground);
  return `rgb(${channels(hex)
    .map((value, i) => Math.round(share * value + (1 - share) * under[i]))
    .join(",")})`;
}
