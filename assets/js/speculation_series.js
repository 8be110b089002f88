// What the speculation tab draws over time, derived from sampled counters and gauges. Pure functions of a window.
// Invariants: a step in which nothing was drafted has no acceptance; a growth is never taken across a gap.

import { NUM_POSITIONS } from "./speculation_limits.js";

export const LOW_ACCEPTANCE = 30;
export const GOOD_ACCEPTANCE = [70, 85];

const position = (kind, place) => `${kind}_per_position_${place}_total`;
const places = [...Array(NUM_POSITIONS).keys()];

/** The columns of /api/samples that the tab reads. */
export const COLUMNS = [
  "drafts_per_s",
  "drafted_tokens_per_s",
  "accepted_tokens_per_s",
  "drafts_total",
  "draft_s_total",
  "verify_s_total",
  "speculation_gain",
  ...places.flatMap((place) => [position("drafted", place), position("accepted", place)]),
];

const ratio = (part, whole, change) => whole.map((all, i) => (all && part[i] !== null ? change(part[i] / all) : null));
const constant = (window, value) => window.t.map(() => value);
const growth = (values) => values.map((value, i) => (i && value !== null && values[i - 1] !== null ? value - values[i - 1] : null));

function perDraft(window, name) {
  return ratio(growth(window.get(name)), growth(window.get("drafts_total")), (seconds) => 1e3 * seconds);
}

/** Per plot: its unit, its lines, and what each line has in a window; area: what a line is the edge of. */
export const PLOTS = {
  acceptance: {
    unit: "%",
    digits: 0,
    lines: [
      {
        key: "acceptance",
        hue: "draft",
        width: 2.25,
        values: (w) => ratio(w.get("accepted_tokens_per_s"), w.get("drafted_tokens_per_s"), (share) => 100 * share),
      },
      { key: "low", hue: "error", dash: "dash", width: 1, values: (w) => constant(w, LOW_ACCEPTANCE), area: [0, LOW_ACCEPTANCE] },
      { key: "good", hue: "ok", dash: "dot", width: 1, values: (w) => constant(w, GOOD_ACCEPTANCE[0]), area: GOOD_ACCEPTANCE },
    ],
  },
  tokens: {
    unit: "",
    digits: 1,
    lines: [
      { key: "drafted", hue: "draft", fill: true, values: (w) => w.get("drafted_tokens_per_s") },
      { key: "accepted", hue: "ok", dash: "dash", values: (w) => w.get("accepted_tokens_per_s") },
    ],
  },
  length: {
    unit: "",
    digits: 2,
    lines: [
      {
        key: "length",
        hue: "tokens",
        values: (w) => ratio(w.get("accepted_tokens_per_s"), w.get("drafts_per_s"), (accepted) => 1 + accepted),
      },
    ],
  },
  times: {
    unit: "ms",
    digits: 2,
    lines: [
      { key: "verify_ms", hue: "runtime", values: (w) => perDraft(w, "verify_s_total") },
      { key: "draft_ms", hue: "draft", dash: "dash", values: (w) => perDraft(w, "draft_s_total") },
    ],
  },
  gain: {
    unit: "×",
    digits: 2,
    lines: [
      { key: "gain", hue: "tokens", width: 2.25, values: (w) => w.get("speculation_gain") },
      { key: "one", hue: "muted", dash: "dash", width: 1, values: (w) => constant(w, 1) },
    ],
  },
};

/** Edges of a line's area as [lows, highs]; null where it has none. */
export const areaOf = (line, window) => line.area && line.area.map((edge) => constant(window, edge));

/** Drafted and accepted of each place over `bins` stretches: [{from, to, places: [{drafted, accepted}]}]. */
export function placesOverTime(window, bins) {
  const used = places.filter((place) => window.get(position("drafted", place)).some((value) => value));
  const grown = used.map((place) => [growth(window.get(position("drafted", place))), growth(window.get(position("accepted", place)))]);
  const size = Math.max(1, Math.ceil(window.t.length / bins));
  const found = [];
  for (let start = 0; start < window.t.length; start += size) {
    const end = Math.min(start + size, window.t.length);
    const sum = (values) => values.slice(start, end).reduce((total, value) => total + (value ?? 0), 0);
    found.push({
      from: window.t[start],
      to: window.t[end - 1] + window.stepS,
      places: grown.map(([drafted, accepted]) => ({ drafted: sum(drafted), accepted: sum(accepted) })),
    });
  }
  return found;
}
