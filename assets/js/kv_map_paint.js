// Draws the cells, pixel by pixel: one pass over an image, so that 40,000 blocks take less than a frame.
// Knows colours and cells; knows nothing of the page around the canvas. Shape doubles colour: hatching for shared
// blocks, an outline for the last one of a text, an edge for those that wait for drafts.

import { CACHED, FREE, fillOf, isAhead, refsOf, stateOf, summary } from "./kv_map_cells.js";
import { colour } from "./theme.js";

const GOLDEN = 0.381966; // of a turn: neighbours in the list of owners are far apart in hue
const HUES = [305, 300]; // where owners' hues begin, and how far they reach: the purples between are the drafts'
const FIRST = 0.7333; // teal
const HATCH = 3; // pixels from line to line, times the scale

/** The colours of the theme as it is now: numbers for the image, and CSS for the rest. */
export function palette() {
  const dark = document.documentElement.dataset.theme === "dark";
  const [saturation, lightness] = dark ? [58, 62] : [56, 44];
  const css = (owner) => `hsl(${hueOf(owner).toFixed(1)} ${saturation}% ${lightness}%)`;
  const known = new Map();
  const pixel = (owner) => {
    if (!known.has(owner)) known.set(owner, fromHsl(hueOf(owner), saturation / 100, lightness / 100));
    return known.get(owner);
  };
  const panel = fromHex(colour("panel"));
  return {
    css,
    owner: pixel,
    ground: panel,
    free: fromHex(colour("kv-free")),
    cached: fromHex(colour("kv-cached")),
    ahead: fromHex(colour("kv-ahead")),
    ink: fromHex(colour("text")),
    faded: (value) => mix(value, panel, 0.26),
  };
}

const hueOf = (owner) => (HUES[0] + ((FIRST + owner * GOLDEN) % 1) * HUES[1]) % 360;

/** Paint all cells of a grid. `only`: the owner that is looked at, the others step back; null: nobody is. */
export function paint(image, blocks, cells, scale, colours, only) {
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(colours.ground);
  const step = cells.size * scale;
  const gap = cells.size >= 5 ? Math.max(1, Math.round(scale)) : cells.size >= 3 ? 1 : 0;
  const side = Math.round(step) - gap;
  const end = cells.first + cells.count;
  for (let cell = 0; cell < cells.cells; cell += 1) {
    const from = cells.first + cell * cells.per;
    let code = blocks.codes[from];
    let owner = blocks.owners[from];
    if (cells.per > 1) ({ code, owner } = summary(blocks, from, Math.min(end, from + cells.per)));
    const x = Math.round((cell % cells.columns) * step);
    const y = Math.round(Math.floor(cell / cells.columns) * step);
    drawCell(pixels, image.width, x, y, side, look(code, owner, colours, only), blocks.view.block_size);
  }
}

function look(code, owner, colours, only) {
  const state = stateOf(code);
  if (state === FREE) return plain(colours.free);
  if (state === CACHED) return plain(only === null ? colours.cached : colours.faded(colours.cached));
  const aside = only !== null && owner !== only && refsOf(code) < 2;
  const own = colours.owner(owner);
  return {
    body: aside ? colours.faded(own) : own,
    hatch: refsOf(code) > 1 ? mix(colours.ground, own, 0.62) : null,
    edge: isAhead(code) ? colours.ahead : null,
    fill: fillOf(code),
    empty: colours.free,
    ahead: isAhead(code),
  };
}

const plain = (body) => ({ body, hatch: null, edge: null, fill: 0, empty: body, ahead: false });

function drawCell(pixels, width, x, y, side, { body, hatch, edge, fill, empty, ahead }, blockSize) {
  const filled = ahead ? 0 : fill ? Math.max(1, Math.round((side * fill) / blockSize)) : side;
  const border = side >= 4 ? (side >= 12 ? 2 : 1) : 0;
  const line = edge ?? (fill ? body : null); // an outline: it is the text's last block, or one that waits for a draft
  for (let row = 0; row < side; row += 1) {
    const start = (y + row) * width + x;
    const inside = side - row <= filled ? body : empty;
    if (hatch === null && line === null) {
      for (let at = start; at < start + side; at += 1) pixels[at] = body; // faster than fill() for a few pixels
      continue;
    }
    for (let column = 0; column < side; column += 1) {
      let value = inside;
      if (hatch !== null && (x + column + y + row) % (2 * HATCH) < HATCH) value = hatch;
      if (line !== null && atEdge(row, column, side, border || 1)) value = line;
      pixels[start + column] = value;
    }
  }
}

const atEdge = (row, column, side, border) =>
  row < border || column < border || row >= side - border || column >= side - border;

/** An opaque pixel as the image keeps it: alpha, blue, green, red. */
const pack = (red, green, blue) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

function fromHex(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return pack(red, green, blue);
}

function fromHsl(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  const channel = (n) => {
    const at = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(at - 3, 9 - at, 1))));
  };
  return pack(channel(0), channel(8), channel(4));
}

function mix(value, ground, share) {
  const part = (shift) => Math.round(share * ((value >> shift) & 255) + (1 - share) * ((ground >> shift) & 255));
  return pack(part(0), part(8), part(16));
}
