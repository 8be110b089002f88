// The dial: accepted drafts of a step, a, against the break-even a*. Left of a* is loss, right of it gain; pattern and
// place say so beside the colour. Knows only the two numbers; its text twin is its label.

import { h } from "./dom.js";
import { number, t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, X, Y, RADIUS] = [300, 138, 150, 120, 92]; // with room for the label of a* at either side
const STEPS = [0.5, 1, 2, 3, 4, 6, 8, 12, 16];

function s(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

const point = (share, radius = RADIUS) => {
  const angle = Math.PI * (1 - share);
  return [X + radius * Math.cos(angle), Y - radius * Math.sin(angle)].map((value) => value.toFixed(2));
};

function arc(from, to, kind) {
  const [[x0, y0], [x1, y1]] = [point(from), point(to)];
  return s("path", {
    class: `pz-dial-arc pz-dial-${kind}`,
    d: `M ${x0} ${y0} A ${RADIUS} ${RADIUS} 0 0 1 ${x1} ${y1}`,
  });
}

function tick(share, inner, outer, kind) {
  const [[x1, y1], [x2, y2]] = [point(share, inner), point(share, outer)];
  return s("line", { class: `pz-dial-${kind}`, x1, y1, x2, y2 });
}

function label(share, text, kind) {
  const [x, y] = point(share, RADIUS + 19);
  const anchor = share < 0.35 ? "end" : share > 0.65 ? "start" : "middle";
  return s("text", { class: `pz-dial-${kind}`, x, y, "text-anchor": anchor }, text);
}

/** {element, update(a, breakEven, middle)}; null where it is not known. middle: what stands in its middle. */
export function createDial() {
  const element = h("div", { class: "pz-dial", role: "img" });
  let shown = "";
  function update(accepted, breakEven, middle) {
    const key = JSON.stringify([accepted, breakEven, middle]);
    if (key === shown) return;
    shown = key;
    element.setAttribute("aria-label", spoken(accepted, breakEven));
    element.title = spoken(accepted, breakEven);
    element.replaceChildren(drawing(accepted, breakEven, middle));
  }
  return { element, update };
}

const spoken = (accepted, breakEven) =>
  t("spec_dial_label", {
    a: accepted === null ? t("spec_unknown") : number(accepted, 2),
    even: breakEven === null ? t("spec_unknown") : number(breakEven, 2),
  });

function drawing(accepted, breakEven, middle) {
  const needed = Math.max(accepted ?? 0, 1.6 * Math.max(breakEven ?? 0, 0));
  const top = STEPS.find((step) => step >= needed) ?? Math.ceil(needed);
  const share = (value) => Math.min(Math.max(value / top, 0), 1);
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  if (breakEven === null) svg.append(arc(0, 1, "blank"));
  else {
    const even = share(breakEven);
    if (even > 0) svg.append(arc(0, even, "loss"));
    svg.append(arc(even, 1, "gain"), tick(even, RADIUS - 15, RADIUS + 11, "even"));
    if (even > 0.06 && even < 0.94) svg.append(label(even, `a* ${number(breakEven, 2)}`, "even-text"));
  }
  svg.append(
    s("text", { class: "pz-dial-end", x: X - RADIUS, y: Y + 16, "text-anchor": "middle" }, number(0)),
    s(
      "text",
      { class: "pz-dial-end", x: X + RADIUS, y: Y + 16, "text-anchor": "middle" },
      number(top, top < 1 ? 1 : 0),
    ),
  );
  if (accepted !== null) {
    const at = share(accepted);
    svg.append(
      tick(at, RADIUS - 26, RADIUS + 7, "needle"),
      s("circle", { class: "pz-dial-knob", cx: point(at, RADIUS - 26)[0], cy: point(at, RADIUS - 26)[1], r: 4 }),
    );
  }
  svg.append(
    s("text", { class: "pz-dial-middle", x: X, y: Y - 22, "text-anchor": "middle" }, middle),
    s(
      "text",
      { class: "pz-dial-under", x: X, y: Y - 2, "text-anchor": "middle" },
      accepted === null ? "" : `a ${number(accepted, 2)}`,
    ),
  );
  return svg;
}
