// Memory by part: what engines state that they hold, held against what their processes are seen to hold. Pure.
// Invariant: the parts of one moment add up to the device's total, but for the difference that is shown beside them;
// a figure that is not known is null.

/** From the bottom of the stack up. */
export const PARTS = [
  ["weights", "weights"],
  ["draft_weights", "draft"],
  ["kv_used", "kv"],
  ["kv_cached", "cached"],
  ["kv_free", "kv"],
  ["workspace", "workspace"],
  ["runtime", "runtime"],
  ["unattributed", "muted"],
  ["app", "app"],
  ["other", "other"],
  ["free", "muted"],
];

export const MEMORY_COLUMNS = [
  ...["weights_bytes", "draft_weights_bytes", "kv_bytes", "kv_used_bytes", "kv_cached_bytes"],
  ...["workspace_bytes", "runtime_bytes", "engine_process_bytes", "engine_gpu_bytes", "app_process_bytes"],
  ...["host_memory_used_bytes", "host_memory_available_bytes", "host_memory_total_bytes"],
  ...["gpu_memory_used_bytes", "gpu_memory_total_bytes"],
];

const ALARM = 0.05; // of what the processes hold: more than that unattributed is an error of somebody's accounts

// Given back first where a process holds less than was stated: memory that was set aside and never written to.
const UNTOUCHED_ORDER = ["kv_free", "workspace", "kv_cached", "kv_used", "runtime", "draft_weights", "weights"];

/** The parts at step `i`, in bytes; device: "host" or "gpu"; enginesOn: where the tensors lie, "cpu" or "cuda". */
export function partsAt(window, i, device, enginesOn) {
  const read = (name) => window.get(name)[i] ?? null;
  const here = (device === "gpu") === (enginesOn === "cuda");
  const totals = device === "gpu" ? gpuTotals(read) : hostTotals(read);
  if (totals.used === null) return null;
  const known = here && read("weights_bytes") !== null;
  const stated = known ? statedParts(read, device) : {};
  // the engines of the other device: what they hold here is their processes' own
  if (!here && device === "host") stated.runtime = totals.process ?? 0;
  return { ...divided(stated, totals), known, enginesHere: here };
}

function hostTotals(read) {
  return {
    used: read("host_memory_used_bytes"),
    free: read("host_memory_available_bytes"),
    total: read("host_memory_total_bytes"),
    process: read("engine_process_bytes") ?? 0,
    app: read("app_process_bytes"),
  };
}

function gpuTotals(read) {
  const [used, total] = [read("gpu_memory_used_bytes"), read("gpu_memory_total_bytes")];
  const free = used === null || total === null ? null : total - used;
  return { used, total, free, process: read("engine_gpu_bytes"), app: 0 }; // the app makes no context there
}

function statedParts(read, device) {
  const pool = read("kv_bytes") ?? 0;
  const [used, cached] = [read("kv_used_bytes") ?? 0, read("kv_cached_bytes") ?? 0];
  return {
    weights: read("weights_bytes") ?? 0,
    draft_weights: read("draft_weights_bytes") ?? 0,
    kv_used: used,
    kv_cached: cached,
    kv_free: Math.max(0, pool - used - cached),
    workspace: read("workspace_bytes") ?? 0,
    runtime: device === "host" ? (read("runtime_bytes") ?? 0) : 0, // stated of the host's memory only
  };
}

function divided(stated, { used, free, total, process, app }) {
  const parts = Object.fromEntries(PARTS.map(([name]) => [name, stated[name] ?? 0]));
  const sum = Object.values(stated).reduce((a, b) => a + b, 0);
  const untouched = process === null ? 0 : Math.max(0, sum - process);
  let left = untouched;
  for (const name of UNTOUCHED_ORDER) {
    const taken = Math.min(left, parts[name]);
    parts[name] -= taken;
    left -= taken;
  }
  const held = process ?? sum;
  parts.unattributed = process === null ? null : Math.max(0, process - sum);
  parts.app = app;
  parts.other = Math.max(0, used - held - (app ?? 0));
  parts.free = free;
  const all = Object.values(parts).reduce((a, b) => a + (b ?? 0), 0);
  return { parts, total, used, process, untouched, sum: all, difference: total - all };
}

/** More is unattributed than accounts may be off. */
export function isAlarming(found) {
  return Boolean(found?.known && found.process && found.parts.unattributed > ALARM * found.process);
}
