// A line of the last minutes without axes, on canvas. Gaps stay gaps.

import { h } from "./dom.js";
import { colour, onThemeChange } from "./theme.js";

/** {element, draw(points)}; points: [[t, value|null], ...] in order; `hue` names a colour of tokens.css. */
export function createSparkline(hue, label) {
  const element = h("canvas", { class: "pz-spark", role: "img", "aria-label": label });
  let points = [];
  const paint = () => drawLine(element, points, hue);
  new ResizeObserver(paint).observe(element);
  onThemeChange(paint);
  return {
    element,
    draw(newPoints) {
      points = newPoints;
      paint();
    },
  };
}

function drawLine(canvas, points, hue) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const known = points.filter(([, value]) => value !== null);
  if (!known.length || !width) return;
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const top = Math.max(...known.map(([, value]) => value)) || 1;
  const place = ([t, value]) => [
    ((t - first) / (last - first || 1)) * width,
    height - 2 - (value / top) * (height - 6),
  ];
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.strokeStyle = colour(hue);
  context.fillStyle = colour(hue);
  for (const run of runs(points)) drawRun(context, run.map(place), height);
}

/** Consecutive known points. */
function runs(points) {
  const found = [];
  let open = null;
  for (const point of points) {
    if (point[1] === null) open = null;
    else if (open) open.push(point);
    else found.push((open = [point]));
  }
  return found;
}

function drawRun(context, places, height) {
  context.beginPath();
  places.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
  if (places.length === 1) context.fillRect(places[0][0] - 2, places[0][1] - 2, 4, 4);
  context.lineTo(places.at(-1)[0], height);
  context.lineTo(places[0][0], height);
  context.globalAlpha = 0.14;
  context.fill();
  context.globalAlpha = 1;
}
