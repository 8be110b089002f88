// All blocks as two arrays of numbers, and how many of them share a cell. Pure data: no DOM, no colours.
// Invariant: `codes[id]` and `owners[id]` are what the newest view says of block `id`; block 0 is nobody's.

export const FREE = 0;
export const CACHED = 1;
export const STATES = ["free", "cached", "held"];

const MOST_CELLS = 16384; // beyond, several blocks share a cell

export const stateOf = (code) => code & 3;
export const isAhead = (code) => Boolean(code & 4);
export const fillOf = (code) => (code >> 7) & 0x3ff;
export const refsOf = (code) => (code >> 17) & 0xff;

export class Blocks {
  constructor() {
    this.view = null; // the newest view but its runs
    this.count = 0;
    this.codes = new Uint32Array(1);
    this.owners = new Int32Array(1);
  }

  /** Lay a view over the blocks. False when it follows one that is not here: everything must be asked for anew. */
  take(view) {
    if (view.kind === "full") {
      this.count = view.num_blocks;
      this.codes = new Uint32Array(view.num_blocks + 1);
      this.owners = new Int32Array(view.num_blocks + 1).fill(-1);
    } else if (this.view?.number !== view.after) {
      return false;
    }
    const { runs, ...rest } = view;
    for (let at = 0; at < runs.length; at += 4) {
      const end = runs[at] + runs[at + 1];
      this.codes.fill(runs[at + 2], runs[at], end);
      this.owners.fill(runs[at + 3], runs[at], end);
    }
    this.view = rest;
    return true;
  }

  owner(id) {
    return this.view?.owners.find((owner) => owner.id === id) ?? null;
  }

  /** Tokens that are certain in a block. */
  tokens(id) {
    const code = this.codes[id];
    if (stateOf(code) === FREE || isAhead(code)) return 0;
    return fillOf(code) || this.view.block_size;
  }
}

/**
 * The grid: {first, count, per, cells, columns, rows, size}. `range`: the blocks to show, [first, count], null: all.
 * Cells are as large as fits, up to `largest`, and never smaller than `smallest`; where there are too many, `per`
 * blocks share one.
 */
export function grid(total, range, { width, height, smallest, largest }) {
  const [first, count] = range ?? [1, total];
  const fitting = (size) => Math.max(1, Math.floor(width / size)) * Math.max(1, Math.floor(height / size));
  const most = Math.max(1, Math.min(MOST_CELLS, fitting(smallest)));
  const per = Math.max(1, Math.ceil(count / most));
  const cells = Math.ceil(count / per);
  let size = largest;
  while (size > smallest && fitting(size) < cells) size -= 1;
  const columns = Math.min(cells, Math.max(1, Math.floor(width / size)));
  return { first, count, per, cells, columns, rows: Math.ceil(cells / columns), size };
}

const FEW = 8; // blocks that are compared with each other; more are counted

/** Several blocks as one: {code, owner} of what most of them are, with the marks that any of them has. */
export function summary(blocks, from, to) {
  const best = to - from <= FEW ? mostOfFew(blocks, from, to) : mostOf(blocks, from, to);
  let ahead = 0;
  let refs = 0;
  for (let id = from; id < to; id += 1) {
    const code = blocks.codes[id];
    ahead |= code & 4;
    if (refsOf(code) > refs) refs = refsOf(code);
  }
  const shared = refs > 1 ? refs << 17 : 0;
  return { code: stateOf(blocks.codes[best]) | ahead | shared, owner: blocks.owners[best] };
}

const alike = ({ codes, owners }, one, other) =>
  stateOf(codes[one]) === stateOf(codes[other]) && owners[one] === owners[other];

/** The first block of those that most are like, without making anything: this runs for each cell of each frame. */
function mostOfFew(blocks, from, to) {
  let best = from;
  let most = 0;
  for (let one = from; one < to && most < to - one; one += 1) {
    let times = 1;
    for (let other = one + 1; other < to; other += 1) if (alike(blocks, one, other)) times += 1;
    if (times > most) [best, most] = [one, times];
  }
  return best;
}

function mostOf({ codes, owners }, from, to) {
  const seen = new Map();
  for (let id = from; id < to; id += 1) {
    const key = stateOf(codes[id]) * 0x100000000 + owners[id];
    const entry = seen.get(key) ?? { id, times: 0 };
    entry.times += 1;
    seen.set(key, entry);
  }
  return [...seen.values()].reduce((best, entry) => (entry.times > best.times ? entry : best)).id;
}

/** [1, 2, 3, 7] as "1–3, 7"; ids keep the order of the text. */
export function ranges(ids) {
  const parts = [];
  let start = 0;
  for (let at = 1; at <= ids.length; at += 1) {
    if (at < ids.length && ids[at] === ids[at - 1] + 1) continue;
    parts.push(start === at - 1 ? `${ids[start]}` : `${ids[start]}–${ids[at - 1]}`);
    start = at;
  }
  return parts.join(", ");
}
