// Reads the live header's data. Pure functions, so that every pane counts in the same way.

const ENDED = new Set(["failed", "stopped"]);
const SERVING = new Set(["ready", "busy"]);

/** Engines that hold memory or are about to. */
export const liveEngines = (state) => (state?.engines ?? []).filter((engine) => !ENDED.has(engine.state));

/** Engines that take requests now. */
export const servingEngines = (state) => (state?.engines ?? []).filter((engine) => SERVING.has(engine.state));

export const loadingEngine = (state) => state?.engines.find((engine) => engine.state === "loading");

/** A figure of all live engines together; null where none of them knows it. */
export function sumOf(state, field) {
  const known = liveEngines(state)
    .map((engine) => engine[field])
    .filter((value) => typeof value === "number");
  return known.length ? known.reduce((total, value) => total + value, 0) : null;
}
