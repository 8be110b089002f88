// Which model a page offers to load: the one on disk that was used last, else the default one of the catalogue.
// Knows nothing of how it is offered. Invariant: until the models are known it is the default.

import { api } from "./api.js";
import { allJobs, isRunning, watchJobs } from "./jobs.js";
import { attempt } from "./toast.js";

let models = [];
let ended = -1;
const listeners = new Set();

/** The model's id; `fallback` where nothing is on disk. */
export function offeredModel(fallback) {
  const here = models.filter((model) => model.on_disk);
  const used = here.filter((model) => model.last_used_at !== null);
  const newest = used.sort((one, other) => other.last_used_at - one.last_used_at)[0];
  return (newest ?? here.find((model) => model.id === fallback) ?? here[0])?.id ?? fallback;
}

/** Called when another model may be the one to offer. */
export function onOfferedModel(listener) {
  listeners.add(listener);
}

async function refresh() {
  const now = allJobs().filter((job) => !isRunning(job)).length;
  if (now === ended) return;
  ended = now;
  models = (await attempt(() => api.models())) ?? models;
  for (const listener of listeners) listener();
}

watchJobs(refresh);
