// Plotly figures in our colours. Owns the one way to draw; knows nothing of where data comes from.
// Invariant: zoom and hidden lines survive every update of one range. Hidden lines by Plotly's `uirevision`; zoom by us,
// since Plotly gives it up as soon as the range that we ask for moves on with the clock.

import { h } from "./dom.js";
import { eventTrace, figureLayout, figureTraces, TOUCH } from "./plot_traces.js";
import { colour, onThemeChange } from "./theme.js";

const MARGINS_PX = 60;
const IMAGE = { format: "png", width: 1280, height: 480, scale: 2 };

/** Plotly.js, 5 MB of script, loaded while the page already stands and its data is under way. */
export const plotly = new Promise((resolve, reject) => {
  const script = h("script", { src: "/assets/plotly.min.js", onload: () => resolve(window.Plotly), onerror: reject });
  document.head.append(script);
});

export const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: TOUCH ? false : "hover", // without a pointer it would always lie over the legend
  // A list of our own: Plotly's default set has a button that sends the chart to a cloud.
  modeBarButtons: [["zoom2d", "pan2d", "autoScale2d"]],
};

/**
 * series: [{name, hue, dash, fill, stack, faint, steps, width}], stacked ones from the top down.
 * {element, draw(t, columns, view, bands), setLog(on), saveImage(name), destroy()}; view: {window, revision} and, where
 * there are such, {markers, gaps, crosshair}; bands: for each line [low, high] or null.
 */
export function createPlot({ title, series, unit = "", min = 0, legend = () => true }) {
  const figure = h("div", { class: "pz-plot", role: "img", "aria-label": title });
  const line = h("div", { class: "pz-crosshair", hidden: true });
  const element = h("div", { class: "pz-plot-frame" }, figure, line);
  let last = null;
  let visible = false;
  let scheduled = false;
  let listening = false;
  let log = false;
  let crosshair = null;
  let zoomed = null; // the revision in which the operator chose a range

  function draw(times, columns, view, bands = null) {
    last = [times, columns, view, bands];
    if (view.crosshair && view.crosshair !== crosshair) {
      crosshair = view.crosshair;
      crosshair.join(plot);
    }
    schedule();
  }

  /** However many reasons there are to draw, one drawing a frame, and none while nobody looks. */
  function schedule() {
    if (scheduled || !last || !window.Plotly || !visible || document.hidden) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      if (figure.isConnected) paint(...last);
    });
  }

  function paint(times, columns, view, bands) {
    const options = { unit, min, log, legend: legend(), widthPx: figure.clientWidth - MARGINS_PX };
    const traces = figureTraces(series, times, columns, bands, options);
    if (view.markers?.length) traces.unshift(eventTrace(view.markers)); // on an axis that lies over the others
    const shown = zoomed === view.revision ? { ...view, ...ranges(figure) } : view;
    window.Plotly.react(figure, traces, figureLayout(shown, options), CONFIG);
    if (!listening) listen();
  }

  function listen() {
    listening = true;
    figure.on("plotly_relayout", onRelayout);
    figure.addEventListener("pointermove", (event) => crosshair?.show(timeAt(event)));
    figure.addEventListener("pointerleave", () => crosshair?.show(null));
  }

  function onRelayout(change) {
    if (change["xaxis.range[0]"] !== undefined || change["yaxis.range[0]"] !== undefined) zoomed = last[2].revision;
    else if (change["xaxis.autorange"]) zoomed = null;
  }

  /** The time under the pointer; null beside the axes. */
  function timeAt(event) {
    const { xaxis, _size: size } = figure._fullLayout;
    const at = event.clientX - figure.getBoundingClientRect().left - size.l;
    return at >= 0 && at <= size.w ? xaxis.p2l(at) / 1000 : null;
  }

  function placeCrosshair(time) {
    const { xaxis, _size: size } = figure._fullLayout ?? {};
    const at = time === null || !xaxis ? -1 : xaxis.l2p(time * 1000);
    line.hidden = !(at >= 0 && at <= size?.w);
    if (!line.hidden) line.style.transform = `translateX(${size.l + at}px)`;
  }

  function setLog(on) {
    log = on;
    zoomed = null;
    schedule();
  }

  async function saveImage(filename) {
    const { Plotly } = window;
    const layout = { ...figure.layout, paper_bgcolor: colour("panel"), margin: { l: 60, r: 20, t: 70, b: 40 } };
    layout.title = { text: title, font: { size: 18, color: colour("text") }, x: 0.02, y: 0.97 };
    return Plotly.downloadImage({ data: figure.data, layout, config: CONFIG }, { ...IMAGE, filename });
  }

  const observer = new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    schedule();
  });
  observer.observe(element);
  document.addEventListener("visibilitychange", schedule);
  const leaveTheme = onThemeChange(schedule);
  plotly.then(schedule);
  const plot = { element, draw, setLog, saveImage, placeCrosshair, destroy };

  function destroy() {
    last = null;
    observer.disconnect();
    leaveTheme();
    document.removeEventListener("visibilitychange", schedule);
    crosshair?.leave(plot);
    if (listening) window.Plotly.purge(figure);
  }

  return plot;
}

/** What a zoomed figure shows now. */
function ranges({ layout: { xaxis, yaxis } }) {
  return { times: [...xaxis.range], heights: yaxis.autorange ? null : [...yaxis.range] };
}
