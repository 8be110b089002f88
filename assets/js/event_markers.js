// What happened in a stretch of time, as marks for plots and as a list. Knows which kinds of events matter on a plot.

import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { clock, t, word } from "./i18n.js";
import { live } from "./live.js";
import { NewestRows } from "./newest_rows.js";

const MOST = 80; // marks on one plot; more would hide it
const MOST_KEPT = 1000; // while a page stays open
const HUES = {
  load: "ok",
  unload: "runtime",
  config: "accent-text",
  speculation: "draft",
  alert: "warn",
  crash: "error",
  engine_failed: "error",
  out_of_memory: "error",
};
const SEVERITIES = { error: "error", warning: "warn" };

const hueOf = (event) => HUES[event.kind] ?? SEVERITIES[event.severity] ?? null;

/** A failure is an out-of-memory where the engine said so. */
const kindOf = (event) =>
  event.kind === "engine_failed" && /out of memory|out_of_memory/i.test(event.message) ? "out_of_memory" : event.kind;

const markOf = (event) => ({
  t: event.t,
  kind: kindOf(event),
  hue: hueOf(event),
  label: `${word("monevent", kindOf(event))}: ${event.message}`,
  event,
});

/** {read(since, until, live), of([from, to]), destroy()}; `onChange` hears when there are others. */
export function createEventMarkers(onChange) {
  const events = new NewestRows(MOST_KEPT);
  let until = Infinity;
  const leave = live.subscribe("events", (event) => {
    if (!hueOf(event) || event.t > until) return;
    events.take(event);
    onChange();
  });
  return {
    async read(since, end, isLive) {
      until = isLive ? Infinity : end;
      const wish = { since: Math.max(0, since), until: end + 1, limit: MOST_KEPT };
      await events.fetch(async () => (await api.eventsOf(wish)).filter(hueOf));
      onChange();
    },
    of([from, to]) {
      const inside = events.rows.filter(({ t: time }) => time >= from && time <= to);
      return inside.slice(0, MOST).reverse().map(markOf);
    },
    destroy: leave,
  };
}

/** The same marks in words. */
export function eventList(element, marks) {
  fill(
    element,
    marks.length
      ? marks.toReversed().map(({ event, kind }) =>
          h(
            "li",
            { "data-severity": event.severity },
            h("time", { class: "pz-figure" }, clock(event.t)),
            h("span", {}, h("strong", {}, word("monevent", kind)), " ", event.message),
          ),
        )
      : h("li", { class: "pz-empty" }, t("mon_no_events")),
  );
}
