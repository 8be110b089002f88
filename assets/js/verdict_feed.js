// The verdict of one engine, asked for again and again while somebody looks. Knows nothing of how it is shown.
// Invariant: an answer for another engine than the one asked for now is dropped; a failure is told, never hidden.

import { api } from "./api.js";

const EVERY_MS = 2500;

async function answer(id) {
  if (id === null) return { verdict: null, error: null };
  try {
    return { verdict: await api.verdict(id), error: null };
  } catch (error) {
    if (error.status === undefined) throw error;
    return { verdict: null, error };
  }
}

/** engine: () => id or null. listener({verdict, error}): both null where there is no engine. Returns {refresh, stop}. */
export function watchVerdict(engine, listener) {
  let timer = null;
  let stopped = false;
  let round = 0;

  async function ask() {
    clearTimeout(timer);
    const mine = ++round;
    const id = engine();
    const told = await answer(document.hidden ? null : id);
    if (stopped || mine !== round) return;
    if (!document.hidden && id === engine()) listener(told);
    timer = setTimeout(ask, EVERY_MS);
  }

  document.addEventListener("visibilitychange", ask);
  ask();
  return {
    refresh: ask,
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", ask);
    },
  };
}
