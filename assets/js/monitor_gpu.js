// GPUs and the host beside them. What cannot be read says why, and is never drawn as 0.

import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { gpuReason } from "./gpu_reason.js";
import { t } from "./i18n.js";
import { createPlotGrid } from "./plot_grid.js";
import * as plots from "./plot_specs.js";
import { attempt } from "./toast.js";

const GPU = {
  gpu_utilisation: plots.GPU_UTILISATION,
  gpu: plots.GPU_MEMORY,
  gpu_temperature: plots.GPU_TEMPERATURE,
  gpu_power: plots.GPU_POWER,
};
const HOST = { cpu: plots.CPU, memory: plots.HOST_MEMORY, disk: plots.DISK_FREE };
const ALL = { ...GPU, ...HOST };

/** What the server calls a figure that it could not read. */
const READINGS = {
  gpu_utilisation: "utilization_percent",
  gpu: "memory",
  gpu_temperature: "temperature_c",
  gpu_power: "power_w",
};

export const COLUMNS = [...plots.columnsOf(...Object.values(ALL)), "host_memory_used_bytes"];
export const BANDS = plots.bandsOf(...Object.values(GPU), plots.CPU, plots.DISK_FREE);

export function mount(element, tab) {
  const grid = createPlotGrid(ALL, tab);
  const names = h("p", { class: "pz-hint pz-gpu-names" });
  fill(element, names, grid.element);
  let system = null;
  let known = null;

  /** A plot without one figure in this time says why; with older ones it stays, and ends where they end. */
  function explain() {
    if (!system || !known) return;
    for (const name of Object.keys(GPU)) {
      const reason = system.gpu_unavailable
        ? gpuReason(system.gpu_unavailable)
        : (system.unavailable[READINGS[name]] ?? t("mon_not_recorded"));
      grid.cards[name].showOff(known[name] ? null : t("mon_not_available", { reason }));
    }
  }

  const leave = tab.onWindow((window) => {
    known = Object.fromEntries(
      Object.entries(GPU).map(([name, { lines }]) => [
        name,
        lines.some(({ source }) => window.get(source).some((value) => value !== null)),
      ]),
    );
    explain();
  });
  attempt(async () => {
    system = await api.system();
    fill(
      names,
      system.gpus.length
        ? t("mon_gpus", { names: system.gpus.join(", ") })
        : t("gpu_not_available", { reason: `${gpuReason(system.gpu_unavailable)}.` }),
      ` ${t("mon_host", { cpu: system.cpu ?? system.platform, n: system.num_cpus })}`,
    );
    explain();
  });
  return {
    destroy() {
      leave();
      grid.destroy();
    },
  };
}
