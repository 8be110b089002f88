// Which engine the playground asks: the chosen one, while it takes requests. Owns the way from the header's state to
// {id, model_id}; knows nothing of what it is asked.

import { chosenEngine, onChosenEngine } from "./chosen_engine.js";
import { servingEngines } from "./engine_state.js";
import { live } from "./live.js";

let state = null;
let told;
const listeners = new Set();

/** The engine to ask, or null: no model is loaded, or the chosen one is not ready. */
export function playEngine() {
  const serving = servingEngines(state);
  const chosen = chosenEngine();
  const known = (state?.engines ?? []).some((engine) => engine.id === chosen);
  const found = known ? serving.find((engine) => engine.id === chosen) : serving[0];
  return found ? { id: found.id, model_id: found.model_id } : null;
}

/** Hear of another engine, and at once of the present one; of nothing before the server has said what there is. */
export function onPlayEngine(listener) {
  listeners.add(listener);
  if (state) listener(playEngine());
  return () => listeners.delete(listener);
}

function changed() {
  if (!state) return;
  const engine = playEngine();
  if (told !== undefined && told?.id === engine?.id) return;
  told = engine;
  for (const listener of listeners) listener(engine);
}

live.subscribe("header", (newest) => {
  state = newest;
  changed();
});
onChosenEngine(changed);
