// Monitor's tab on speculation: does it pay, what is accepted over time and by place, who proposes, what it takes, the
// self-test, and the switches. Figures over time are sampled counters, the others the verdict's; captions define them.

import { createControls } from "./speculation_controls.js";
import { fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { createPlotCard } from "./plot_card.js";
import { createPlaceStrip, createPositionBars } from "./speculation_positions.js";
import { proposersTable } from "./speculation_proposers.js";
import { areaOf, COLUMNS, GOOD_ACCEPTANCE, LOW_ACCEPTANCE, PLOTS } from "./speculation_series.js";
import { createSelftestPane } from "./selftest_pane.js";
import { createVerdict } from "./verdict.js";
import { watchVerdict } from "./verdict_feed.js";

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
  const values = { low: LOW_ACCEPTANCE, from: GOOD_ACCEPTANCE[0], to: GOOD_ACCEPTANCE[1] };
  return createPlotCard(`spec_${name}`, {
    ...spec,
    title: t(`spec_plot_${name}`),
    definition: t(`spec_plot_${name}_definition`, values),
    lines: spec.lines.map((line) => ({
      ...line,
      name: t(`spec_line_${line.key}`),
      area: (window) => areaOf(line, window) ?? null,
    })),
  });
}
