// The slider over a board's steps, and its slow replay. Owns the shown step; knows nothing of traces.
// Invariant: while it follows, new steps are shown as they come; who moves the slider stops that until it is at the end.

import { fill, h, icon, iconButton, setText } from "./dom.js";
import { number, t } from "./i18n.js";

const DRAFT_MS = 650; // how long a draft is seen before it is judged
const JUDGED_MS = 800;
const PLAIN_MS = 350;

export function createPlayer(board) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const slider = h("input", {
    type: "range",
    class: "pz-chalk-slider",
    min: 0,
    max: 0,
    value: 0,
    "aria-label": t("board_slider"),
    oninput: () => {
      const wished = Number(slider.value);
      pause();
      set(wished);
    },
  });
  const label = h("output", { class: "pz-figure pz-hint pz-chalk-count" });
  const back = iconButton("left", t("board_back"), () => step(-1));
  const forth = iconButton("right", t("board_forth"), () => step(1));
  const play = iconButton("play", t("board_replay"), () => (timer ? pause() : start()));
  const motion = h("p", { class: "pz-hint", hidden: true }, t("board_no_motion"));
  const element = h("div", { class: "pz-chalk-player", hidden: true }, play, back, slider, forth, label, motion);
  let shown = 0;
  let follows = true;
  let timer = null;

  const noMotion = () => {
    play.hidden = still.matches;
    motion.hidden = !still.matches;
    if (still.matches) pause();
  };
  still.addEventListener("change", noMotion);
  noMotion();

  function set(count, phase = "judged") {
    shown = count;
    follows = count >= board.numSteps;
    slider.value = count;
    slider.setAttribute("aria-valuetext", t("board_step_of", { step: count, steps: board.numSteps }));
    setText(label, t("board_step_of", { step: number(count), steps: number(board.numSteps) }));
    back.disabled = count <= 1;
    forth.disabled = count >= board.numSteps;
    board.show(count, phase);
  }

  function step(by) {
    pause();
    set(Math.max(1, Math.min(board.numSteps, shown + by)));
  }

  function start() {
    fill(play, icon("pause"));
    play.setAttribute("aria-label", t("board_pause"));
    play.title = t("board_pause");
    if (shown >= board.numSteps) shown = 0;
    next();
  }

  function next() {
    if (shown >= board.numSteps) return pause();
    set(shown + 1, "drafting");
    const isPlain = board.element.querySelector(
      `[data-now][data-plain], .pz-chalk-row:last-child[data-plain]:not([hidden])`,
    );
    timer = setTimeout(
      () => {
        set(shown);
        timer = setTimeout(next, isPlain ? 0 : JUDGED_MS);
      },
      isPlain ? PLAIN_MS : DRAFT_MS,
    );
  }

  function pause() {
    clearTimeout(timer);
    timer = null;
    fill(play, icon("play"));
    play.setAttribute("aria-label", t("board_replay"));
    play.title = t("board_replay");
    if (board.numSteps && shown) set(shown);
  }

  return {
    element,
    /** The board has other steps now. isNew: it is another trace. */
    update(isNew = false) {
      if (isNew) {
        pause();
        follows = true;
        shown = 0;
      }
      slider.max = board.numSteps;
      element.hidden = board.numSteps === 0;
      if (!timer) set(follows ? board.numSteps : Math.min(shown, board.numSteps));
    },
    destroy() {
      clearTimeout(timer);
      still.removeEventListener("change", noMotion);
    },
  };
}
