// Plotly figures in our colours. Owns layout and the one way to draw; knows nothing of where data comes from.
// Invariant: zoom and hidden lines survive every update of one range. Hidden lines by Plotly's `uirevision`; zoom by us,
// since Plotly gives it up as soon as the range that we ask for moves on with the clock.

import { h } from "./dom.js";
import { colour, onThemeChange } from "./theme.js";

const FEW_POINTS = 12; // a line of one point is invisible
const TOUCH = matchMedia("(hover: none)").matches;

/** Plotly.js, 5 MB of script, loaded while the page already stands and its data is under way. */
const plotly = new Promise((resolve, reject) => {
  const script = h("script", { src: "/assets/plotly.min.js", onload: () => resolve(window.Plotly), onerror: reject });
  document.head.append(script);
});

const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: TOUCH ? false : "hover", // without a pointer it would always lie over the legend
  // A list of our own: Plotly's default set has a button that sends the chart to a cloud.
  modeBarButtons: [["zoom2d", "pan2d", "autoScale2d", "toImage"]],
};

// Times without a date line below them, and in no language's words.
const TIME_FORMATS = [
  { dtickrange: [null, 59999], value: "%H:%M:%S" },
  { dtickrange: [60000, 86399999], value: "%H:%M" },
  { dtickrange: [86400000, null], value: "%d/%m" },
];

/** series: [{name, hue, dash, fill, stack, steps, width}], stacked ones from the top down; {element, draw(t, columns, {window, revision})} */
export function createPlot({ title, series, unit = "", min = 0 }) {
  const element = h("div", { class: "pz-plot", role: "img", "aria-label": title });
  let last = null;
  let visible = false;
  let scheduled = false;
  let listening = false;
  let zoomed = null; // the revision in which the operator chose a range

  function draw(times, columns, view) {
    last = [times, columns, view];
    schedule();
  }

  /** However many reasons there are to draw, one drawing a frame, and none while nobody looks. */
  function schedule() {
    if (scheduled || !last || !window.Plotly || !visible || document.hidden) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      paint(...last);
    });
  }

  function paint(times, columns, view) {
    const dates = times.map((time) => new Date(time * 1000));
    const heights = stacked(series, columns);
    const traces = series.flatMap((line, i) => [
      area(line, dates, heights[i]),
      trace(line, dates, heights[i], columns[i], unit),
    ]);
    const shown = zoomed === view.revision ? { ...view, ...ranges(element) } : view;
    window.Plotly.react(element, traces.filter(Boolean), layout(shown, unit, min), CONFIG);
    if (!listening) element.on("plotly_relayout", onRelayout);
    listening = true;
  }

  function onRelayout(change) {
    if (change["xaxis.range[0]"] !== undefined || change["yaxis.range[0]"] !== undefined) zoomed = last[2].revision;
    else if (change["xaxis.autorange"]) zoomed = null;
  }

  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    schedule();
  }).observe(element);
  document.addEventListener("visibilitychange", schedule);
  onThemeChange(schedule);
  plotly.then(schedule);
  return { element, draw };
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
    fillcolor: line.stack ? mixed(hue, colour("panel"), 0.5) : withAlpha(hue, 0.14),
    line: { width: 0 },
  };
}

function trace(line, x, y, values, unit) {
  return {
    type: "scatter",
    mode: y.filter((value) => value !== null).length <= FEW_POINTS ? "lines+markers" : "lines",
    name: line.name,
    x,
    y,
    customdata: values,
    connectgaps: false,
    legendgroup: line.name,
    marker: { size: 4, color: colour(line.hue) },
    line: {
      color: colour(line.hue),
      width: line.width ?? 1.75,
      dash: line.dash ?? "solid",
      shape: line.steps ? "hv" : "linear",
    },
    hovertemplate: `%{customdata:.4~g}${unit && ` ${unit}`}<extra>%{fullData.name}</extra>`,
  };
}

/** What a zoomed figure shows now. */
function ranges({ layout: { xaxis, yaxis } }) {
  return { times: [...xaxis.range], heights: yaxis.autorange ? null : [...yaxis.range] };
}

function layout({ window, times = window.map((time) => new Date(time * 1000)), heights = null, revision }, unit, min) {
  const axis = {
    gridcolor: colour("grid"),
    linecolor: colour("line"),
    tickcolor: colour("line"),
    zeroline: false,
    automargin: true,
  };
  return {
    uirevision: revision,
    autosize: true,
    margin: { l: 40, r: 8, t: 8, b: 24 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "ui-sans-serif, system-ui, sans-serif", size: 12, color: colour("muted") },
    dragmode: TOUCH ? false : "zoom", // a finger scrolls the page
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("text") } },
    showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("text") },
    xaxis: { ...axis, type: "date", range: times, showgrid: false, nticks: 6, tickformatstops: TIME_FORMATS },
    yaxis: {
      ...axis,
      rangemode: min === 0 ? "tozero" : "normal",
      ...(heights ? { range: heights } : { autorange: true }),
      nticks: 5,
      ticksuffix: unit && ` ${unit}`,
    },
  };
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** "#rrggbb" with an alpha, as Plotly wants it. */
const withAlpha = (hex, alpha) => `rgba(${channels(hex).join(",")},${alpha})`;

/** Two "#rrggbb" mixed to an opaque colour. */
function mixed(hex, ground, share) {
  const under = channels(ground);
  return `rgb(${channels(hex)
    .map((value, i) => Math.round(share * value + (1 - share) * under[i]))
    .join(",")})`;
}
