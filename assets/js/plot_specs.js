// What the plots of the monitor show, each once: lines, hues, units, and the columns they are made from.

import { columnLine, inGib, inMs, mapped } from "./plot_card.js";

const total = (key, column) => columnLine(key, "muted", column, { dash: "dash", width: 1, change: inGib });

export const TOKENS = {
  unit: "",
  lines: [
    columnLine("generation", "tokens", "generation_tokens_per_s", { fill: true }),
    columnLine("prompt", "runtime", "prompt_tokens_per_s", { dash: "dash" }),
  ],
};

export const KV_BLOCKS = {
  unit: "",
  lines: [
    columnLine("kv_used", "kv", "kv_blocks_used", { fill: true }),
    columnLine("kv_cached", "cached", "kv_blocks_cached", { dash: "dot" }),
    columnLine("kv_total", "muted", "kv_blocks_total", { dash: "dash", width: 1 }),
  ],
};

export const REQUESTS = {
  unit: "",
  lines: [
    columnLine("running", "tokens", "num_requests_running", { steps: true }),
    columnLine("waiting", "draft", "num_requests_waiting", { steps: true, dash: "dash" }),
  ],
};

export const ACCEPTANCE = {
  unit: "%",
  none: "line_nothing_drafted",
  lines: [{ key: "acceptance", hue: "draft", values: acceptance }],
};

/** Accepted of drafted tokens over each step, in percent; a step in which nothing was drafted has no such figure. */
function acceptance(window) {
  const accepted = window.get("accepted_tokens_per_s");
  return window
    .get("drafted_tokens_per_s")
    .map((drafted, i) => (drafted && accepted[i] !== null ? (100 * accepted[i]) / drafted : null));
}

export const HOST_MEMORY = {
  unit: "GiB",
  of: "server",
  now: (window) => mapped(window.get("host_memory_used_bytes"), inGib),
  lines: [
    { key: "other", hue: "other", stack: true, values: otherProcesses },
    columnLine("app", "app", "app_process_bytes", { stack: true, change: inGib }),
    columnLine("engine", "weights", "engine_process_bytes", { stack: true, change: inGib }),
    total("memory_total", "host_memory_total_bytes"),
  ].map((line) => ({ ...line, band: undefined })), // bands of stacked lines would lie over each other
};

function otherProcesses(window) {
  const [engine, app] = [window.get("engine_process_bytes"), window.get("app_process_bytes")];
  return window
    .get("host_memory_used_bytes")
    .map((used, i) => (used === null ? null : inGib(Math.max(0, used - (engine[i] ?? 0) - (app[i] ?? 0)))));
}

export const CPU = {
  unit: "%",
  of: "server",
  lines: [columnLine("cpu", "runtime", "host_cpu_percent", { fill: true })],
};

export const GPU_MEMORY = {
  unit: "GiB",
  of: "server",
  lines: [
    columnLine("gpu_used", "weights", "gpu_memory_used_bytes", { fill: true, change: inGib }),
    total("gpu_total", "gpu_memory_total_bytes"),
  ],
};

const single = (key, hue, column, unit) => ({ unit, of: "server", lines: [columnLine(key, hue, column)] });

export const GPU_UTILISATION = single("gpu_utilisation", "kv", "gpu_utilization_percent", "%");
export const GPU_TEMPERATURE = single("gpu_temperature", "draft", "gpu_temperature_c", "°C");
export const GPU_POWER = single("gpu_power", "workspace", "gpu_power_w", "W");
export const DISK_FREE = {
  unit: "GiB",
  of: "server",
  lines: [columnLine("disk_free", "other", "disk_free_bytes", { change: inGib })],
};

const quantiles = (of) => ({
  unit: "ms",
  logs: true,
  none: "mon_no_latencies",
  lines: [
    columnLine("p50", "tokens", `${of}_p50_s`, { change: inMs }),
    columnLine("p95", "runtime", `${of}_p95_s`, { dash: "dash", change: inMs }),
    columnLine("p99", "muted", `${of}_p99_s`, { width: 1, change: inMs }),
  ],
});

export const TTFT = quantiles("ttft");
export const ITL = quantiles("itl");

export const FINISHED = {
  unit: "",
  lines: [
    columnLine("finished", "tokens", "requests_per_s"),
    columnLine("preemptions", "error", "preemptions_per_s", { dash: "dash" }),
  ],
};

const sources = (specs) => specs.flatMap((spec) => spec.lines.map((line) => line.source).filter(Boolean));

/** The columns that plots read, and those of them that have a band. */
export const columnsOf = (...specs) => [...new Set(sources(specs))];
const BANDLESS = /_per_s$|_p\d\d_s$|_total$/;
export const bandsOf = (...specs) => columnsOf(...specs).filter((name) => !BANDLESS.test(name));
