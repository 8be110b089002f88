// What happened in a stretch of time, as marks for plots and as a list. Knows which kinds of events matter on a plot.

import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { clock, t, word } from "./i18n.js";
import { live } from "./live.js";

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
  let marks = [];
  let until = Infinity;
  const take = (event) => {
    if (!hueOf(event) || event.t > until || marks.some((mark) => mark.event.id === event.id)) return;
    marks.push(markOf(event));
    if (marks.length > MOST_KEPT) marks.shift();
    onChange();
  };
  const leave = live.subscribe("events", take);
  return {
    async read(since, end, isLive) {
      until = isLive ? Infinity : end;
      const events = await api.eventsOf({ since: Math.max(0, since), until: end + 1, limit: 1000 });
      marks = events.filter(hueOf).map(markOf).reverse();
      onChange();
    },
    of: ([from, to]) => marks.filter(({ t: time }) => time >= from && time <= to).slice(-MOST),
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
