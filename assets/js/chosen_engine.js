// Which engine the header and the panes speak of: the default one, unless the operator chose another in this tab.
// Owns the choice. Invariant: it is kept by model, so that it holds when the model is loaded again under another run
// id; an engine that has ended is spoken of only while the operator's choice is it, or where there is no other.

import { liveEngines } from "./engine_state.js";
import { live } from "./live.js";

const KEY = "pizarra.engine";
const listeners = new Set();
let state = null;
let told = null;

live.subscribe("header", (news) => {
  state = news;
  tell();
});

/** The entry of the header's data that is spoken of, null without any. */
export function chosenEntry(of = state) {
  const engines = of?.engines ?? [];
  const wanted = sessionStorage.getItem(KEY);
  return engines.find((engine) => engine.model_id === wanted) ?? liveEngines(of)[0] ?? engines[0] ?? null;
}

/** The run id of the chosen engine; null where none is loaded. */
export function chosenEngine() {
  const entry = chosenEntry();
  return entry && liveEngines(state).includes(entry) ? entry.id : null;
}

export function chooseEngine(modelId) {
  sessionStorage.setItem(KEY, modelId);
  tell();
}

/** listener(run id or null), at each change. Returns the way to stop. */
export function onChosenEngine(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() {
  const id = chosenEngine();
  if (id === told) return;
  told = id;
  for (const listener of [...listeners]) listener(id);
}
