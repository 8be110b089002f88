// The monitor's state in its address: what is looked at can be sent to someone, or kept. Pure functions.

import { parseRange, rangeWord, relative } from "./time_range.js";

const FIRST_TAB = "glance";
const FIRST_RANGE = "5m";
const RUN_ID = /^[\w-]{1,64}$/;

/** {tab, range, engine, pausedAt}; engine: null (all together), "chosen" (the header's) or an engine run's id. */
export function readAddress(search, tabs) {
  const words = new URLSearchParams(search);
  const engine = words.get("engine");
  const pausedAt = Number(words.get("paused"));
  return {
    tab: tabs.includes(words.get("tab")) ? words.get("tab") : FIRST_TAB,
    range: parseRange(words.get("range")) ?? relative(FIRST_RANGE),
    engine: RUN_ID.test(engine ?? "") && engine !== "all" ? engine : null,
    pausedAt: pausedAt > 0 && Number.isFinite(pausedAt) ? pausedAt : null,
  };
}

export function writeAddress({ tab, range, engine, pausedAt }) {
  const words = new URLSearchParams({ tab, range: rangeWord(range) });
  if (engine) words.set("engine", engine);
  if (pausedAt !== null) words.set("paused", String(Math.floor(pausedAt)));
  return `?${words}`;
}
