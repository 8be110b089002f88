// How long answers take: quantiles over time, how they spread over the whole range, queue and throughput.

import { fill } from "./dom.js";
import { createHistogramCard } from "./latency_histogram.js";
import { createPlotGrid } from "./plot_grid.js";
import * as plots from "./plot_specs.js";

const SHOWN = {
  ttft: plots.TTFT,
  itl: plots.ITL,
  queue: plots.REQUESTS,
  throughput: plots.TOKENS,
};

export const COLUMNS = plots.columnsOf(...Object.values(SHOWN));
export const BANDS = plots.bandsOf(plots.REQUESTS);

export function mount(element, tab) {
  const grid = createPlotGrid(SHOWN, tab);
  const histograms = createHistogramCard(tab);
  fill(element, grid.element);
  grid.cards.itl.element.after(...histograms.elements);
  return {
    destroy() {
      grid.destroy();
      histograms.destroy();
    },
  };
}
