// The measured runs, side by side on one clock. Owns the clock and the two lanes; knows nothing of how they were measured.
// Invariant: at each moment of the clock a lane shows what its run had given by then, no more and no less.

import { fill, h, icon, setText } from "./dom.js";
import { number, t } from "./i18n.js";

export const WAYS = ["plain", "speculative"];
const TICK_MS = 40;

/** replay: {way: {times: [[ms, tokens, text]]}}. Starts at the end; who wants to see it run presses play. */
export function createReplay(replay) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const lanes = WAYS.map((way) => lane(way, replay[way].times));
  const total = Math.max(...lanes.map((each) => each.end));
  const slider = h("input", {
    type: "range",
    class: "pz-chalk-slider",
    min: 0,
    max: Math.ceil(total),
    value: Math.ceil(total),
    "aria-label": t("race_clock"),
    oninput: () => {
      pause();
      show(Number(slider.value));
    },
  });
  const clock = h("output", { class: "pz-figure pz-race-clock" });
  const play = h(
    "button",
    {
      type: "button",
      class: "pz-button pz-secondary",
      hidden: still.matches,
      onclick: () => (timer ? pause() : start()),
    },
    icon("play"),
    h("span", {}, t("race_replay")),
  );
  let timer = null;
  let from = 0;

  function show(at) {
    slider.value = at;
    slider.setAttribute("aria-valuetext", t("race_clock_at", { s: number(at / 1000, 2) }));
    setText(clock, t("race_clock_at", { s: number(at / 1000, 2) }));
    for (const each of lanes) each.show(at, total);
  }

  function label(iconName, text) {
    fill(play, icon(iconName), h("span", {}, text));
  }

  function start() {
    const at = Number(slider.value) >= Math.ceil(total) ? 0 : Number(slider.value);
    from = performance.now() - at;
    label("pause", t("race_pause"));
    timer = setInterval(() => {
      const now = performance.now() - from;
      show(Math.min(now, Math.ceil(total)));
      if (now >= total) pause();
    }, TICK_MS);
    show(at);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    label("play", t("race_replay"));
  }

  show(Math.ceil(total));
  return {
    element: h(
      "div",
      { class: "pz-race-replay" },
      h("div", { class: "pz-race-controls" }, play, slider, clock),
      h(
        "div",
        { class: "pz-race-lanes" },
        lanes.map((each) => each.element),
      ),
      h("p", { class: "pz-hint" }, t("race_one_after_the_other")),
    ),
    destroy: pause,
  };
}

function lane(way, times) {
  const total = times.reduce((sum, [, count]) => sum + count, 0);
  const end = times.at(-1)[0];
  const text = h("div", { class: "pz-race-text", tabindex: 0, "aria-label": t(`race_way_${way}`) });
  const count = h("span", { class: "pz-figure" });
  const bar = h("i", {});
  const done = h("span", { class: "pz-figure pz-race-done" });
  const pieces = times.map(([, tokens, piece]) => h("span", { class: tokens > 1 ? "pz-race-burst" : null }, piece));
  fill(text, pieces);
  return {
    end,
    element: h(
      "section",
      { class: `pz-race-lane pz-race-${way}` },
      h("header", { class: "pz-row" }, h("h3", { class: "pz-grow" }, t(`race_way_${way}`)), done),
      h("div", { class: "pz-race-track", "aria-hidden": "true" }, bar),
      h("p", { class: "pz-hint pz-race-count" }, count),
      text,
    ),
    show(at) {
      let shown = 0;
      let newest = null;
      times.forEach(([moment, tokens], place) => {
        const here = moment <= at;
        pieces[place].hidden = !here;
        pieces[place].classList.remove("pz-race-new");
        if (here) {
          shown += tokens;
          newest = place;
        }
      });
      if (newest !== null && at < end) pieces[newest].classList.add("pz-race-new");
      bar.style.width = `${(100 * shown) / total}%`;
      setText(count, t("race_tokens_so_far", { n: number(shown), total: number(total) }));
      setText(done, at >= end ? t("race_finished", { s: number(end / 1000, 2) }) : "");
      if (at < end) text.scrollTop = text.scrollHeight;
    },
  };
}
