// Acceptance by place in a draft: bars since the load, and a strip over time. Both denominators are named; the bars are
// a table, the strip has one as its twin.

import { fill, h, setText } from "./dom.js";
import { clock, number, percent, t } from "./i18n.js";
import { placesOverTime } from "./speculation_series.js";
import { colour, onThemeChange } from "./theme.js";
import { dataTable } from "./verdict_table.js";

const ROW_PX = 18;
const BINS = 90;

/** {element, update(positions)}; positions of the verdict: [{position, drafted, verified, accepted}]. */
export function createPositionBars() {
  const element = h("div", {});
  let shown = null;
  function update(positions) {
    const key = JSON.stringify(positions);
    if (key === shown) return;
    shown = key;
    fill(element, positions.length ? bars(positions) : h("p", { class: "pz-empty" }, t("spec_nothing_drafted")));
  }
  return { element, update };
}

function bars(positions) {
  const heads = ["place", "of_drafted", "of_verified"].map((name) => ({
    text: t(`spec_col_${name}`),
    definition: t(`spec_col_${name}_definition`),
  }));
  const rows = positions.map(({ position, drafted, verified, accepted }) => [
    number(position + 1),
    bar(accepted, drafted, "drafted"),
    bar(accepted, verified, "verified"),
  ]);
  return dataTable(heads, rows, t("spec_by_place"));
}

function bar(part, whole, kind) {
  const share = whole ? part / whole : 0;
  return h(
    "div",
    { class: "pz-spec-bar" },
    h(
      "span",
      { class: "pz-spec-bar-track" },
      h("span", { class: `pz-spec-bar-fill pz-spec-bar-${kind}`, style: { width: `${100 * share}%` } }),
    ),
    h("span", { class: "pz-figure" }, whole ? percent(part, whole) : "–"),
    h("span", { class: "pz-hint pz-figure" }, `${number(part)} / ${number(whole)}`),
  );
}

/** {element, draw(window), destroy()}: accepted / drafted of each place over the shared range. */
export function createPlaceStrip() {
  const canvas = h("canvas", {
    class: "pz-spec-strip-canvas",
    role: "img",
    "aria-label": t("spec_strip_label"),
    tabindex: 0,
  });
  const note = h("p", { class: "pz-hint pz-figure pz-spec-strip-note" });
  const empty = h("p", { class: "pz-empty", hidden: true }, t("spec_nothing_drafted"));
  const twin = h("div", {});
  const details = h("details", { class: "pz-spec-details" }, h("summary", {}, t("spec_as_table")), twin);
  const element = h("div", {}, canvas, empty, note, details);
  let bins = [];
  let at = null; // the stretch that the keyboard points at
  const paint = () => drawStrip(canvas, bins, at);
  const sizes = new ResizeObserver(paint);
  sizes.observe(canvas);
  const leaveTheme = onThemeChange(paint);
  details.addEventListener("toggle", () => showTwin());

  function showTwin() {
    if (details.open) fill(twin, stripTable(bins));
  }
  function point(index, place) {
    at = bins[index] ? index : null;
    setText(note, at === null ? t("spec_strip_hint") : stretchText(bins[at], place));
    paint();
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * bins.length);
    point(index, Math.floor((event.clientY - box.top) / ROW_PX));
  });
  canvas.addEventListener("pointerleave", () => point(-1, 0));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    point(Math.min(Math.max((at ?? bins.length) + step, 0), bins.length - 1), null);
  });

  function draw(window) {
    bins = placesOverTime(window, BINS);
    const any = bins.some((bin) => bin.places.some(({ drafted }) => drafted > 0));
    canvas.hidden = details.hidden = note.hidden = !any;
    empty.hidden = any;
    if (at === null) setText(note, t("spec_strip_hint"));
    paint();
    showTwin();
  }
  const destroy = () => {
    sizes.disconnect();
    leaveTheme();
  };
  return { element, draw, destroy };
}

const stretchText = ({ from, to, places }, only) =>
  t("spec_strip_at", {
    from: clock(from),
    to: clock(to),
    places:
      places
        .map(({ drafted, accepted }, place) => [
          place,
          drafted ? `${place + 1}: ${percent(accepted, drafted)} (${number(accepted)} / ${number(drafted)})` : null,
        ])
        .filter(([place, text]) => text && (only === null || place === only || !places[only]?.drafted))
        .map(([, text]) => text)
        .join(" · ") || t("spec_nothing_drafted"),
  });

function drawStrip(canvas, bins, at) {
  const rows = bins[0]?.places.length ?? 0;
  canvas.style.height = `${Math.max(rows, 1) * ROW_PX}px`;
  const width = canvas.clientWidth;
  if (!width || !rows) return;
  const scale = devicePixelRatio;
  canvas.width = width * scale;
  canvas.height = rows * ROW_PX * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const wide = width / bins.length;
  bins.forEach(({ places }, i) => {
    places.forEach(({ drafted, accepted }, place) => {
      const [x, y] = [i * wide, place * ROW_PX];
      context.globalAlpha = 1;
      context.fillStyle = colour("grid");
      context.fillRect(x, y + 1, Math.max(wide - 0.5, 1), ROW_PX - 2);
      if (!drafted) return;
      context.fillStyle = colour("draft");
      context.globalAlpha = 0.12 + 0.88 * Math.min(accepted / drafted, 1);
      context.fillRect(x, y + 1, Math.max(wide - 0.5, 1), ROW_PX - 2);
    });
  });
  context.globalAlpha = 1;
  if (at === null) return;
  context.strokeStyle = colour("text");
  context.strokeRect(at * wide + 0.5, 0.5, Math.max(wide - 1, 1), rows * ROW_PX - 1);
}

function stripTable(bins) {
  const used = bins.filter(({ places }) => places.some(({ drafted }) => drafted > 0)).slice(-20);
  const count = Math.max(...used.map(({ places }) => places.length), 0);
  const heads = [
    { text: t("spec_col_time") },
    ...[...Array(count).keys()].map((place) => ({ text: number(place + 1) })),
  ];
  const rows = used.map(({ from, places }) => [
    clock(from),
    ...places.map(({ drafted, accepted }) =>
      drafted ? `${percent(accepted, drafted)} (${number(accepted)} / ${number(drafted)})` : "–",
    ),
  ]);
  return dataTable(heads, rows, t("spec_strip_caption"));
}
