// The engine that a pane asks: the chosen one, as /api/engines tells of it, once it takes requests.
// Owns the watch over it. Invariant: a listener hears of it at once, and again when another is chosen, when it becomes
// ready or ends, and when its speculation is switched; null while there is none to ask.

import { api } from "./api.js";
import { chosenEngine, onChosenEngine } from "./chosen_engine.js";
import { servingEngines } from "./engine_state.js";
import { live } from "./live.js";

/** listener(engine or null). Returns the way to stop. */
export function watchEngine(listener) {
  let told = null; // what was last read, in words
  let stopped = false;
  let state = null;

  async function look() {
    if (state === null) return;
    const id = chosenEngine();
    const entry = servingEngines(state).find((each) => each.id === id);
    const now = entry ? `${id} ${entry.speculation?.state ?? state.speculation?.state}` : "none";
    if (now === told) return;
    told = now;
    try {
      const engines = entry ? await api.engines() : [];
      if (!stopped && told === now) listener(engines.find((each) => each.id === id) ?? null);
    } catch {
      told = null; // the next header tries again
    }
  }

  const stopHeader = live.subscribe("header", (news) => {
    state = news;
    look();
  });
  const stopChosen = onChosenEngine(look);
  return () => {
    stopped = true;
    stopHeader();
    stopChosen();
  };
}
