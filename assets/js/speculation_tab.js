// Monitor's tab on speculation: does it pay, what is accepted over time and by place, who proposes, what it takes, the
// self-test, and the switches. Figures over time are sampled counters, the others the verdict's; captions define them.

import { createControls } from "./speculation_controls.js";
import { fill, h, setText } from "./dom.js";
import { clock, number, t } from "./i18n.js";
import { createPlot } from "./plots.js";
import { createPlaceStrip, createPositionBars } from "./speculation_positions.js";
import { proposersTable } from "./speculation_proposers.js";
import { areaOf, COLUMNS, GOOD_ACCEPTANCE, LOW_ACCEPTANCE, PLOTS } from "./speculation_series.js";
import { createSelftestPane } from "./selftest_pane.js";
import { createVerdict } from "./verdict.js";
import { watchVerdict } from "./verdict_feed.js";
import { dataTable } from "./verdict_table.js";

const TABLE_ROWS = 12;

/** The columns of /api/samples that a window for this tab needs. */
export { COLUMNS };

export function mount(element, tab) {
  const engine = () => tab.engine();
  const verdict = createVerdict();
  const bars = createPositionBars();
  const strip = createPlaceStrip();
  const proposers = h("div", {});
  const selftest = createSelftestPane(engine);
  const plots = Object.entries(PLOTS).map(([name, spec]) => plotCard(name, spec));
  let tested = engine();

  const feed = watchVerdict(engine, (told) => {
    verdict.update(told);
    if (told.error) return;
    if (engine() !== tested) {
      tested = engine();
      selftest.refresh();
    }
    controls.update(told.verdict);
    bars.update(told.verdict?.positions ?? []);
    const key = JSON.stringify(told.verdict?.proposers);
    if (key !== proposers.dataset.key) fill(proposers, proposersTable(told.verdict?.proposers ?? []));
    proposers.dataset.key = key;
  });
  const controls = createControls(engine, feed.refresh);
  const leave = tab.onWindow((window, view) => {
    for (const plot of plots) plot.draw(window, view);
    strip.draw(window);
    if (engine() !== tested) feed.refresh();
  });

  fill(
    element,
    h(
      "div",
      { class: "pz-spec-tab" },
      verdict.element,
      card("controls", controls.element),
      h(
        "div",
        { class: "pz-plots" },
        plots.map((plot) => plot.element),
        card("strip", strip.element),
      ),
      card("places", bars.element),
      card("proposers", proposers),
      card("selftest", selftest.element),
    ),
  );
  return {
    destroy() {
      leave();
      feed.stop();
      selftest.destroy();
      strip.destroy();
      for (const plot of plots) plot.destroy();
      element.replaceChildren();
    },
  };
}

const card = (name, ...body) =>
  h(
    "section",
    { class: `pz-card pz-spec-${name}` },
    h("h2", { title: t(`spec_card_${name}_definition`) }, t(`spec_card_${name}`)),
    h("p", { class: "pz-hint" }, t(`spec_card_${name}_definition`)),
    body,
  );

function plotCard(name, spec) {
  const title = t(`spec_plot_${name}`);
  const definition = t(`spec_plot_${name}_definition`, {
    low: LOW_ACCEPTANCE,
    from: GOOD_ACCEPTANCE[0],
    to: GOOD_ACCEPTANCE[1],
  });
  const names = spec.lines.map((line) => t(`spec_line_${line.key}`));
  const plot = createPlot({
    title,
    unit: spec.unit,
    series: spec.lines.map((line, i) => ({ ...line, name: names[i] })),
  });
  const now = h("strong", { class: "pz-figure pz-plot-now", dataset: { plot: `spec_${name}` } }, "–");
  const twin = h("div", {});
  const details = h("details", { class: "pz-spec-details" }, h("summary", {}, t("spec_as_table")), twin);
  const element = h(
    "section",
    { class: "pz-card pz-plot-card pz-spec-plot" },
    h("div", { class: "pz-row" }, h("h2", { class: "pz-grow", title: definition }, title), now),
    plot.element,
    h("p", { class: "pz-hint" }, definition),
    details,
  );
  let last = null;
  details.addEventListener("toggle", showTwin);

  function showTwin() {
    if (details.open && last) fill(twin, twinTable(title, names, spec, ...last));
  }
  function draw(window, view) {
    const columns = spec.lines.map((line) => line.values(window));
    const areas = spec.lines.map((line) => areaOf(line, window) ?? null);
    const gaps = view.gaps?.engine ?? [];
    plot.draw(window.t, columns, { ...view, gaps }, areas.some(Boolean) ? areas : null);
    setText(now, shown(columns[0].at(-1) ?? null, spec));
    last = [window.t, columns];
    showTwin();
  }
  return { element, draw, destroy: () => plot.destroy?.() };
}

const shown = (value, { unit, digits }) => (value === null ? "–" : `${number(value, digits)}${unit && ` ${unit}`}`);

function twinTable(title, names, spec, times, columns) {
  const told = spec.lines.map((line, i) => ({ line, i })).filter(({ line }) => !line.area && line.key !== "one");
  const known = times.map((_, at) => at).filter((at) => told.some(({ i }) => columns[i][at] !== null));
  const heads = [{ text: t("spec_col_time") }, ...told.map(({ i }) => ({ text: names[i] }))];
  const rows = known
    .slice(-TABLE_ROWS)
    .map((at) => [clock(times[at]), ...told.map(({ i }) => shown(columns[i][at], spec))]);
  return rows.length ? dataTable(heads, rows, title) : h("p", { class: "pz-empty" }, t("spec_nothing_drafted"));
}
