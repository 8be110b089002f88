// The first tab: one plot of each kind. Owns only the choice.

import { fill } from "./dom.js";
import { t } from "./i18n.js";
import { gpuReason } from "./gpu_reason.js";
import { live } from "./live.js";
import { createPlotGrid } from "./plot_grid.js";
import * as plots from "./plot_specs.js";

const SHOWN = {
  tokens: plots.TOKENS,
  kv: plots.KV_BLOCKS,
  memory: plots.HOST_MEMORY,
  requests: plots.REQUESTS,
  acceptance: plots.ACCEPTANCE,
  cpu: plots.CPU,
  gpu: plots.GPU_MEMORY,
  ttft: plots.TTFT,
};

export const COLUMNS = [
  ...plots.columnsOf(...Object.values(SHOWN)),
  ...["accepted_tokens_per_s", "drafted_tokens_per_s", "host_memory_used_bytes"],
];
export const BANDS = ["kv_blocks_used", "kv_blocks_cached", "host_cpu_percent", "gpu_memory_used_bytes"].concat(
  plots.bandsOf(plots.REQUESTS),
);

export function mount(element, tab) {
  const grid = createPlotGrid(SHOWN, tab);
  fill(element, grid.element);
  const leave = live.subscribe("header", ({ gpu }) =>
    grid.cards.gpu.showOff(gpu.available ? null : t("mon_not_available", { reason: gpuReason(gpu.reason) })),
  );
  return {
    destroy() {
      leave();
      grid.destroy();
    },
  };
}
