// How a drafter's acceptance grows while it is trained: one line a position, with the same figures as a table.

import { h } from "./dom.js";
import { number, percent, t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 560;
const HEIGHT = 170;
const LEFT = 56;
const BOTTOM = 28;
const SHOWN_POSITIONS = 4;
const SHOWN_ROWS = 12;

/** points: [{tokens, seconds, greedy: [share a position], greedy_mean_length}], oldest first. Null without any. */
export function acceptanceCurve(points) {
  if (!points.length) return null;
  const last = points.at(-1);
  return h(
    "figure",
    { class: "pz-curve" },
    h("figcaption", { class: "pz-hint" }, t("mod_curve_definition")),
    points.length > 1 ? drawing(points) : null,
    h(
      "p",
      { class: "pz-figure pz-curve-now" },
      t("mod_curve_now", {
        first: percent(last.greedy[0], 1),
        length: last.greedy_mean_length === undefined ? "–" : number(last.greedy_mean_length, 2),
      }),
    ),
    table(points),
  );
}

const svg = (name, attributes, ...children) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

const xOf = (point, index) => point.tokens ?? index;

function drawing(points) {
  const xs = points.map(xOf);
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const x = (value) => LEFT + ((WIDTH - LEFT - 8) * (value - first)) / (last - first || 1);
  const y = (share) => 6 + (HEIGHT - BOTTOM - 6) * (1 - share);
  const label = t("mod_curve_label", { n: points.length, share: percent(points.at(-1).greedy[0], 1) });
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    root.append(
      svg("line", { x1: LEFT, x2: WIDTH - 8, y1: y(share), y2: y(share), class: "pz-curve-grid" }),
      svg("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, percent(share, 1)),
    );
  }
  root.append(
    svg("text", { x: LEFT, y: HEIGHT - 4 }, tokensText(first)),
    svg("text", { x: WIDTH - 8, y: HEIGHT - 4, "text-anchor": "end" }, t("mod_curve_tokens", { n: tokensText(last) })),
  );
  const positions = Math.min(SHOWN_POSITIONS, points[0].greedy.length);
  for (let position = 0; position < positions; position += 1) {
    const known = points.filter((point) => typeof point.greedy[position] === "number");
    const path = known.map((point) => `${x(xOf(point, points.indexOf(point)))},${y(point.greedy[position])}`).join(" ");
    root.append(svg("polyline", { points: path, class: `pz-curve-line pz-curve-line-${position}` }));
  }
  return root;
}

const tokensText = (value) => (value >= 1e6 ? `${number(value / 1e6, 1)} M` : number(value));

function table(points) {
  const positions = Math.min(SHOWN_POSITIONS, points[0].greedy.length);
  const columns = Array.from({ length: positions }, (_, i) => t("mod_curve_position", { n: i + 1 }));
  return h(
    "details",
    { class: "pz-log" },
    h("summary", {}, t("mod_curve_table")),
    h(
      "div",
      { class: "pz-table-wrap" },
      h(
        "table",
        { class: "pz-table" },
        h("thead", {}, h("tr", {}, [t("mod_curve_learned"), ...columns].map((name) => h("th", {}, name)))),
        h(
          "tbody",
          {},
          points
            .slice(-SHOWN_ROWS)
            .map((point, index) =>
              h(
                "tr",
                {},
                h("td", {}, tokensText(xOf(point, index))),
                columns.map((_, position) => h("td", {}, percent(point.greedy[position], 1))),
              ),
            ),
        ),
      ),
    ),
  );
}
