// Why nothing was recorded: no server, or no engine. Pure functions of a window of samples.

import { clock, t } from "./i18n.js";

const SHOWN = 3; // in words; all of them are on the plots
const overlaps = ([from, to], [start, end]) => Math.min(to, end) - Math.max(from, start) > 0.5 * (to - from);

/** {server: [{from, to, reason}], engine: [...]}; causeOf(time) says why an engine ended then, where that is known. */
export function gapsWithReasons(window, range, causeOf = () => null) {
  const server = window.gaps("host_memory_used_bytes", range);
  const engine = window.gaps("engine_process_bytes", range);
  const reasonOf = (gap) => {
    if (server.some((other) => overlaps(gap, other))) return t("mon_no_server");
    const cause = causeOf(gap[0]);
    return cause ? t("mon_no_engine_since", { cause }) : t("mon_no_engine");
  };
  return {
    server: server.map(([from, to]) => ({ from, to, reason: t("mon_no_server") })),
    engine: engine.map((gap) => ({ from: gap[0], to: gap[1], reason: reasonOf(gap) })),
  };
}

/** The longest gaps in words, oldest first. */
export function gapSentences({ server, engine }) {
  const all = engine.length ? engine : server;
  return all
    .toSorted((a, b) => b.to - b.from - (a.to - a.from))
    .slice(0, SHOWN)
    .sort((a, b) => a.from - b.from)
    .map(({ from, to, reason }) => t("mon_gap", { from: clock(from), to: clock(to), reason }));
}
