// The board itself: rows of steps, the ledge that tells of one token, and how far it is shown.
// Owns its nodes, the focus among tokens and the shown step. Knows nothing of where steps come from.
// Invariants: rows that stand are never made anew while steps come; exactly one token can be reached with Tab.

import { fill, h } from "./dom.js";
import { number, t } from "./i18n.js";
import { describe } from "./chalkboard_tokens.js";
import { stepRow } from "./chalkboard_row.js";

const LEGEND = ["accepted", "rejected", "recovered", "bonus", "not_judged", "plain"];

export function createBoard() {
  const list = h("ol", { class: "pz-chalk-rows", "aria-label": t("board_rows") });
  const notice = h("p", { class: "pz-chalk-notice", hidden: true });
  const empty = h("div", { class: "pz-chalk-empty" });
  const scroller = h("div", { class: "pz-chalk-scroller" }, heading(), notice, list, empty);
  const ledge = h("p", { class: "pz-chalk-ledge", role: "status" });
  const element = h("section", { class: "pz-chalk", "aria-label": t("board_title") }, legend(), scroller, ledge);
  let rows = []; // {node, tokens, entry, first}
  let tokens = []; // of all rows
  let shown = 0;
  let pointed = null;

  function point(place, { focus = false } = {}) {
    const found = tokens[place];
    if (!found) return;
    const before = pointed === null ? null : nodeOf(pointed);
    before?.setAttribute("tabindex", "-1");
    before?.classList.remove("pz-chalk-pointed");
    pointed = place;
    const node = nodeOf(place);
    node.setAttribute("tabindex", "0");
    node.classList.add("pz-chalk-pointed");
    if (focus) node.focus();
    const { name, text } = describe(found);
    fill(ledge, h("strong", {}, name), h("span", {}, text));
  }
  const nodeOf = (place) => list.querySelector(`[data-place="${place}"]`);
  const placeOf = (target) => {
    const node = target.closest?.("[data-place]");
    return node ? Number(node.dataset.place) : null;
  };
  for (const kind of ["pointerover", "focusin", "click"])
    list.addEventListener(kind, ({ target }) => {
      const place = placeOf(target);
      if (place !== null) point(place);
    });
  list.addEventListener("keydown", (event) => {
    const place = placeOf(event.target);
    if (place === null) return;
    const to = moved(event.key, place);
    if (to === null) return;
    event.preventDefault();
    point(to, { focus: true });
  });

  function moved(key, place) {
    const row = rows.findLastIndex((each) => each.first <= place);
    const within = place - rows[row].first;
    const last = shown === 0 ? 0 : rows[shown - 1].first + rows[shown - 1].tokens.length - 1;
    const inRow = (to) => rows[to].first + Math.min(within, rows[to].tokens.length - 1);
    if (key === "ArrowRight") return Math.min(last, place + 1);
    if (key === "ArrowLeft") return Math.max(0, place - 1);
    if (key === "ArrowDown") return row + 1 < shown ? inRow(row + 1) : null;
    if (key === "ArrowUp") return row > 0 ? inRow(row - 1) : null;
    if (key === "Home") return rows[row].first;
    if (key === "End") return rows[row].first + rows[row].tokens.length - 1;
    return null;
  }

  return {
    element,
    get numSteps() {
      return rows.length;
    },
    /** What to say where there are no steps. */
    say(...nodes) {
      fill(empty, nodes);
      empty.hidden = rows.length > 0;
    },
    /** The steps as they are known now; those that are the same stay. */
    setTrace({ entries, dropped, num_prompt_tokens: start }) {
      const same = entries.findIndex((entry, place) => !rows[place] || !isSame(rows[place].entry, entry));
      const from = same < 0 ? entries.length : same;
      for (const row of rows.splice(from)) row.node.remove();
      tokens = tokens.slice(0, rows.length ? rows.at(-1).first + rows.at(-1).tokens.length : 0);
      if (pointed !== null && pointed >= tokens.length) pointed = null;
      for (const entry of entries.slice(from)) {
        const isFirst =
          dropped === 0 && (start === null || start === undefined ? rows.length === 0 : entry.position === start);
        const row = stepRow(entry, { step: dropped + rows.length + 1, isFirst, place: tokens.length });
        rows.push({ ...row, entry, first: tokens.length });
        tokens.push(...row.tokens);
        list.append(row.node);
      }
      const slowest = Math.max(0.001, ...entries.slice(1).map((entry) => entry.draft_ms + entry.verify_ms));
      list.style.setProperty("--slowest", slowest);
      notice.hidden = !dropped;
      if (dropped) fill(notice, t("board_dropped", { n: number(dropped) }));
      empty.hidden = rows.length > 0;
      element.classList.toggle("pz-chalk-has-rows", rows.length > 0);
      if (pointed === null && tokens.length) {
        fill(ledge, t("board_ledge_hint"));
        nodeOf(0)?.setAttribute("tabindex", "0");
        pointed = 0;
      }
      if (!tokens.length) fill(ledge);
    },
    /** Show the first `count` steps; the last of them in a phase: "drafting" is before the model judged it. */
    show(count, phase = "judged", follow = true) {
      shown = Math.min(count, rows.length);
      rows.forEach(({ node }, place) => {
        node.hidden = place >= shown;
        node.toggleAttribute("data-now", place === shown - 1 && shown < rows.length);
        node.dataset.phase = place === shown - 1 ? phase : "judged";
      });
      if (follow && shown) keepInView(rows[shown - 1].node, shown === rows.length);
    },
  };

  /** Scrolls the board alone, never the page around it. */
  function keepInView(node, isLast) {
    const head = scroller.firstElementChild.offsetHeight;
    const bottom = node.offsetTop + node.offsetHeight;
    if (isLast && node === rows.at(-1).node) scroller.scrollTop = scroller.scrollHeight;
    else if (bottom > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = bottom - scroller.clientHeight + 8;
    else if (node.offsetTop - head < scroller.scrollTop) scroller.scrollTop = node.offsetTop - head - 8;
  }
}

/** Of two tellings of a step: the later one may know that its end is beyond the answer's. */
function isSame(one, other) {
  const unused = (entry) => [...entry.drafted, entry.next].filter((token) => token?.unused).length;
  return one === other || (one.position === other.position && one.text === other.text && unused(one) === unused(other));
}

function heading() {
  const cells = ["board_step", "board_tokens", "board_who", "board_took", "board_k_of"];
  return h(
    "div",
    { class: "pz-chalk-head", "aria-hidden": "true" },
    cells.map((key) => h("span", {}, t(key))),
  );
}

function legend() {
  return h(
    "ul",
    { class: "pz-chalk-legend", "aria-label": t("board_legend") },
    LEGEND.map((kind) =>
      h(
        "li",
        { title: t(`board_kind_${kind}_hint`) },
        h(
          "span",
          { class: `pz-chalk-token pz-chalk-${kind}`, "aria-hidden": "true" },
          h("span", { class: "pz-chalk-word" }, "abc"),
        ),
        h("span", {}, t(`board_kind_${kind}`)),
      ),
    ),
  );
}
