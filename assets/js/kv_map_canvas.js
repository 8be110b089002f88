// The map itself: a canvas with one cell a block, and over it a second one for the path, the counts and the cursor.
// Owns layout, drawing, pointer and keys; knows neither where blocks come from nor what is said about them.
// Invariant: what is drawn is the newest blocks it was given, once a frame at most, and only while it is seen.

import { h } from "./dom.js";
import { t } from "./i18n.js";
import { grid, refsOf } from "./kv_map_cells.js";
import { paint, palette } from "./kv_map_paint.js";
import { onThemeChange } from "./theme.js";

const NARROW = matchMedia("(max-width: 820px)");
const WIDE_LAYOUT = { height: 520, smallest: 4, largest: 40 };
const STRIP_LAYOUT = { height: 60, smallest: 5, largest: 20 };
const NUMBERED_SIZE = 15; // cells that have room for a count
const DRILL_BLOCKS = 4096;

/** on: {look(id, count), pick(id), drilled(range)}. look: where pointer or cursor stand, null: nowhere. */
export function createMap(on) {
  return new BlockCanvas(on);
}

class BlockCanvas {
  #blocks = null;
  #grid = null;
  #range = null;
  #cursor = null;
  #path = null; // {owner, tables}
  #picked = null;
  #colours = palette();
  #scheduled = false;
  #image = null;

  constructor(on) {
    this.on = on;
    this.cells = h("canvas", { class: "pz-kv-cells", "aria-hidden": "true" });
    this.over = h("canvas", { class: "pz-kv-over", "aria-hidden": "true" });
    this.element = h(
      "div",
      {
        class: "pz-kv-map",
        tabindex: 0,
        role: "application",
        "aria-label": t("kv_map_label"),
        "aria-describedby": "pz-kv-keys",
        onpointermove: (event) => this.#hover(event),
        onpointerleave: () => this.on.look(this.#cursor),
        onclick: (event) => this.#click(event),
        onkeydown: (event) => this.#key(event),
        onblur: () => this.#draw(),
      },
      this.cells,
      this.over,
    );
    this.observer = new ResizeObserver(() => this.#draw());
    this.observer.observe(this.element);
    this.forgetTheme = onThemeChange(() => {
      this.#colours = palette();
      this.#draw();
    });
  }

  destroy() {
    this.observer.disconnect();
    this.forgetTheme();
  }

  show(blocks) {
    this.#blocks = blocks;
    this.#draw();
  }

  /** The owner whose blocks are joined by a line, as {owner, tables}; null: none. */
  showPath(path) {
    this.#path = path;
    this.#draw();
  }

  /** The block that was chosen, and stays marked. */
  mark(id) {
    this.#picked = id;
    if (id !== null) this.#cursor = id;
    this.#draw();
  }

  get range() {
    return this.#range;
  }

  /** Back to all blocks. */
  overview() {
    this.#range = null;
    this.on.drilled(null);
    this.#draw();
  }

  #draw() {
    if (this.#scheduled || !this.#blocks?.count) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      if (this.element.isConnected && this.element.clientWidth) this.#paint();
    });
  }

  #paint() {
    const layout = NARROW.matches ? STRIP_LAYOUT : WIDE_LAYOUT;
    const width = this.element.clientWidth;
    const began = performance.now();
    const cells = (this.#grid = grid(this.#blocks.count, this.#range, { ...layout, width }));
    const scale = Math.min(2, window.devicePixelRatio || 1);
    const height = cells.rows * cells.size;
    for (const canvas of [this.cells, this.over]) resize(canvas, width, height, scale);
    const context = this.cells.getContext("2d");
    if (this.#image?.width !== this.cells.width || this.#image?.height !== this.cells.height)
      this.#image = context.createImageData(this.cells.width, this.cells.height);
    paint(this.#image, this.#blocks, cells, scale, this.#colours, this.#path?.owner ?? null);
    context.putImageData(this.#image, 0, 0);
    this.#paintOver(cells, scale);
    this.element.dataset.drawMs = (performance.now() - began).toFixed(2);
    this.element.dataset.perCell = cells.per;
  }

  #paintOver(cells, scale) {
    const context = this.over.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (this.#path) this.#paintPath(context, cells);
    if (cells.per === 1 && cells.size >= NUMBERED_SIZE) this.#paintCounts(context, cells);
    if (this.#picked !== null) this.#outline(context, this.#picked, 2);
    if (this.#cursor !== null && document.activeElement === this.element) this.#outline(context, this.#cursor, 3);
  }

  #paintCounts(context, cells) {
    context.font = `600 ${Math.min(12, cells.size - 6)}px ui-sans-serif, system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.strokeStyle = this.#css("panel");
    context.fillStyle = this.#css("text");
    for (let id = cells.first; id < cells.first + cells.count; id += 1) {
      const refs = refsOf(this.#blocks.codes[id]);
      if (refs < 2) continue;
      const [x, y] = this.#centre(id);
      context.strokeText(refs, x, y);
      context.fillText(refs, x, y);
    }
  }

  /** A line through the blocks in the order of the text, one for each KV group. */
  #paintPath(context, cells) {
    const inside = (id) => id >= cells.first && id < cells.first + cells.count;
    context.lineJoin = "round";
    for (const table of this.#path.tables) {
      const points = table.blocks.filter(inside).map((id) => this.#centre(id));
      if (!points.length) continue;
      const roomy = cells.size >= 14;
      for (const [width, stroke] of [
        [roomy ? 4 : 1.75, this.#css("panel")],
        [roomy ? 1.75 : 0.75, this.#css("text")],
      ]) {
        context.lineWidth = width;
        context.strokeStyle = stroke;
        context.beginPath();
        points.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
        context.stroke();
      }
      context.fillStyle = this.#css("text");
      context.beginPath();
      context.arc(...points[0], Math.max(2, cells.size / 5), 0, 7); // where the text begins
      context.fill();
    }
  }

  #outline(context, id, width) {
    const cells = this.#grid;
    if (id < cells.first || id >= cells.first + cells.count) return;
    const [x, y] = this.#centre(id);
    const reach = cells.size / 2;
    for (const [line, stroke] of [
      [width + 2, this.#css("panel")],
      [width, this.#css("accent-text")],
    ]) {
      context.lineWidth = line;
      context.strokeStyle = stroke;
      context.strokeRect(x - reach, y - reach, cells.size - 1, cells.size - 1);
    }
  }

  #css(name) {
    return getComputedStyle(this.element).getPropertyValue(`--pz-${name}`).trim();
  }

  #centre(id) {
    const { first, per, columns, size } = this.#grid;
    const cell = Math.floor((id - first) / per);
    return [((cell % columns) + 0.5) * size - 0.5, (Math.floor(cell / columns) + 0.5) * size - 0.5];
  }

  /** The first block of the cell under a pointer, null beside the cells. */
  #at(event) {
    if (!this.#grid) return null;
    const { first, count, per, cells, columns, size } = this.#grid;
    const box = this.cells.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / size);
    const cell = Math.floor((event.clientY - box.top) / size) * columns + column;
    if (column < 0 || column >= columns || cell < 0 || cell >= cells) return null;
    return Math.min(first + cell * per, first + count - 1);
  }

  #hover(event) {
    const id = this.#at(event);
    this.on.look(id ?? this.#cursor, this.#inCell(id));
  }

  #inCell(id) {
    if (id === null || !this.#grid) return 1;
    return Math.min(this.#grid.per, this.#grid.first + this.#grid.count - id);
  }

  #click(event) {
    const id = this.#at(event);
    if (id !== null) this.#choose(id);
  }

  #choose(id) {
    this.#cursor = id;
    if (this.#grid.per > 1) this.#drill(id);
    else this.on.pick(id);
  }

  /** Show the blocks around this one, each in a cell of its own. */
  #drill(id) {
    const count = Math.min(DRILL_BLOCKS, Math.max(64, Math.floor(this.#grid.count / 8)), this.#blocks.count);
    const first = Math.max(1, Math.min(id - Math.floor(count / 2), this.#blocks.count - count + 1));
    this.#range = [first, count];
    this.on.drilled(this.#range);
    this.on.look(id, 1);
    this.#draw();
  }

  #key(event) {
    if (!this.#grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const { first, count, per, columns } = this.#grid;
    const steps = {
      ArrowRight: per,
      ArrowLeft: -per,
      ArrowDown: per * columns,
      ArrowUp: -per * columns,
      PageDown: 8 * per * columns,
      PageUp: -8 * per * columns,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key in steps) {
      const cursor = this.#cursor ?? first;
      const aimed = this.#cursor === null ? first : cursor + steps[event.key];
      const last = first + Math.floor((count - 1) / per) * per;
      if (Number.isFinite(aimed) && (aimed < first || aimed > first + count - 1)) this.#cursor = cursor;
      else this.#cursor = Math.max(first, Math.min(last, aimed));
      this.on.look(this.#cursor, this.#inCell(this.#cursor));
      this.#draw();
    } else if ((event.key === "Enter" || event.key === " ") && this.#cursor !== null) {
      this.#choose(this.#cursor);
    } else if (event.key === "Escape") {
      if (this.#picked !== null || this.#path) this.on.pick(null);
      else if (this.#range) this.overview();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function resize(canvas, width, height, scale) {
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}
