// The course of a request as a waterfall: a lane for each thing it did, on one axis, with the same as tables below.
// Knows nothing of the request around it. Invariant: what is drawn is in the tables, in the same numbers.

import { h } from "./dom.js";
import { number, seconds, t } from "./i18n.js";

const LANES = ["server", "held", "queue", "prefill", "decode", "preempted", "delivery"];
const TICKS = 5;

export function waterfall(course) {
  const total = course.end_s || 1;
  const worth = course.phases.filter((phase) => isWorthALane(phase, total));
  const lanes = LANES.filter((name) => worth.some((phase) => phase.name === name));
  const summary = course.phases.map((phase) => `${t(`req_phase_${phase.name}`)} ${length(phase)}`).join(", ");
  return [
    h(
      "div",
      { class: "pz-req-waterfall", role: "img", "aria-label": t("req_waterfall_label", { phases: summary }) },
      lanes.map((name) => lane(name, course, total)),
      axis(total),
    ),
    h("p", { class: "pz-hint" }, t(`req_clock_${course.clock}`)),
    tables(course),
  ];
}

/** The way to the engine and back is next to nothing as a rule: the tables have it all the same. */
const isWorthALane = ({ name, start_s: start, end_s: end }, total) =>
  !["server", "held", "delivery"].includes(name) || end - start >= 0.01 * total;

const length = (part) => seconds(part.end_s - part.start_s);

function lane(name, course, total) {
  const parts = course.phases.filter((phase) => phase.name === name);
  const spent = parts.reduce((sum, part) => sum + part.end_s - part.start_s, 0);
  const bars = name === "prefill" && course.chunks.length ? course.chunks : parts;
  return h(
    "div",
    { class: "pz-req-lane", title: t(`req_phase_${name}_definition`) },
    h("span", { class: "pz-req-lane-name" }, t(`req_phase_${name}`)),
    h(
      "span",
      { class: "pz-req-track" },
      bars.map((part) =>
        h("span", {
          class: "pz-req-bar",
          dataset: { phase: name, again: part.recomputed ? "yes" : "no" },
          style: {
            "--from": String((100 * part.start_s) / total),
            "--long": String((100 * (part.end_s - part.start_s)) / total),
          },
          title: barTitle(name, part),
        }),
      ),
    ),
    h("span", { class: "pz-req-lane-time pz-figure" }, seconds(spent)),
  );
}

function barTitle(name, part) {
  const when = `${seconds(part.start_s)} – ${seconds(part.end_s)}`;
  if (part.num_tokens === undefined) return `${t(`req_phase_${name}`)}: ${when}`;
  return `${t("req_chunk_title", { tokens: number(part.num_tokens), done: number(part.done) })}: ${when}`;
}

function axis(total) {
  const marks = Array.from({ length: TICKS }, (_, i) => (total * i) / (TICKS - 1));
  return h(
    "div",
    { class: "pz-req-lane pz-req-axis" },
    h("span"),
    h(
      "span",
      { class: "pz-req-ticks" },
      marks.map((at) => h("span", {}, seconds(at))),
    ),
    h("span"),
  );
}

function tables(course) {
  return h(
    "details",
    { class: "pz-req-twin" },
    h("summary", {}, t("req_as_table")),
    table(
      ["phase", "from", "to", "took"],
      course.phases.map((phase) => [
        t(`req_phase_${phase.name}`),
        seconds(phase.start_s),
        seconds(phase.end_s),
        length(phase),
      ]),
    ),
    course.chunks.length ? [h("h3", {}, t("req_chunks")), chunkTable(course.chunks)] : null,
    course.preemptions.length ? [h("h3", {}, t("req_preemptions")), preemptionTable(course.preemptions)] : null,
  );
}

const chunkTable = (chunks) =>
  table(
    ["chunk", "from", "to", "took", "tokens", "done"],
    chunks.map((chunk, i) => [
      chunk.recomputed ? t("req_chunk_again", { n: i + 1 }) : number(i + 1),
      seconds(chunk.start_s),
      seconds(chunk.end_s),
      length(chunk),
      number(chunk.num_tokens),
      number(chunk.done),
    ]),
  );

const preemptionTable = (preemptions) =>
  table(
    ["taken", "returned", "computed"],
    preemptions.map((each) => [
      seconds(each.t_s),
      each.resumed_s === null ? t("req_never") : seconds(each.resumed_s),
      number(each.num_computed_tokens),
    ]),
  );

/** A plain table; the first column is text, the others are figures. */
export function table(heads, rows) {
  const right = (i) => (i ? "pz-num" : null);
  return h(
    "div",
    { class: "pz-table-wrap" },
    h(
      "table",
      { class: "pz-table" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((name, i) => h("th", { scope: "col", class: right(i) }, t(`req_th_${name}`))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((cells) =>
          h(
            "tr",
            {},
            cells.map((cell, i) => h("td", { class: right(i) }, cell)),
          ),
        ),
      ),
    ),
  );
}
