// The last ten minutes under the map: a strip of what was used, a slider over it, and live or paused.
// Owns the line of counts; knows nothing of blocks. Times when nobody watched are gaps: nothing was recorded then.

import { button, fill, h, icon, setText } from "./dom.js";
import { clock, number, percent, t } from "./i18n.js";
import { colour, onThemeChange } from "./theme.js";

export const SPAN_S = 600;
const GAP_S = 2.5;
const HEIGHT = 44;

/** on: {goto(time), live()}. {element, load(history), add(view), shows(time or null), destroy()} */
export function createScrubber(on) {
  return new Scrubber(on);
}

class Scrubber {
  #t = [];
  #counts = []; // [held, cached, total]
  #shown = null; // the time that is looked at, null: now
  #drawn = false;

  constructor(on) {
    this.on = on;
    this.strip = h("canvas", { class: "pz-kv-strip", "aria-hidden": "true" });
    this.top = h("span", { class: "pz-kv-top pz-figure", "aria-hidden": "true" });
    this.slider = h("input", {
      type: "range",
      class: "pz-kv-slider",
      step: 0.5,
      "aria-label": t("kv_scrubber"),
      title: t("kv_scrubber_definition"),
      oninput: () => this.#moved(Number(this.slider.value)),
    });
    this.toggle = button("", () => (this.#shown === null ? this.on.goto(this.#t.at(-1) ?? null) : this.on.live()), {
      class: "pz-button pz-secondary pz-kv-toggle",
    });
    this.label = h("span", { class: "pz-figure pz-kv-time", role: "status" });
    this.element = h(
      "div",
      { class: "pz-kv-scrubber" },
      this.toggle,
      h("div", { class: "pz-kv-track" }, this.strip, this.top, this.slider),
      this.label,
    );
    this.forgetTheme = onThemeChange(() => this.#draw());
    this.observer = new ResizeObserver(() => this.#draw());
    this.observer.observe(this.strip);
    this.#say();
  }

  destroy() {
    this.observer.disconnect();
    this.forgetTheme();
  }

  load({ t: times, columns }) {
    const newest = this.#t.at(-1) ?? -Infinity;
    const before = times.filter((time) => time < (this.#t[0] ?? Infinity));
    if (Number.isFinite(newest) && !before.length) return;
    this.#t = [...before, ...this.#t];
    const earlier = before.map((_, at) => [columns.held[at], columns.cached[at], columns.total[at]]);
    this.#counts = [...earlier, ...this.#counts];
    this.#draw();
  }

  /** The newest view has come. */
  add({ t: time, counts }) {
    if (time <= (this.#t.at(-1) ?? -Infinity)) return;
    this.#t.push(time);
    this.#counts.push([counts.held, counts.cached, counts.total]);
    while (this.#t[0] < time - SPAN_S) {
      this.#t.shift();
      this.#counts.shift();
    }
    this.#draw();
  }

  shows(time) {
    this.#shown = time;
    this.#say();
    this.#draw();
  }

  /** The newest time that is kept and not after this one. */
  #kept(time) {
    let at = this.#t.findLastIndex((each) => each <= time + 0.25);
    if (at < 0) at = 0;
    return this.#t[at] ?? null;
  }

  #moved(time) {
    const kept = this.#kept(time);
    if (kept === null || kept >= (this.#t.at(-1) ?? 0)) this.on.live();
    else this.on.goto(kept);
  }

  #say() {
    const live = this.#shown === null;
    const key = live ? "pause" : "play";
    if (this.toggle.dataset.icon !== key) {
      fill(this.toggle, icon(key), h("span", {}, t(live ? "kv_pause" : "kv_live")));
      this.toggle.dataset.icon = key;
    }
    setText(this.label, live ? t("kv_is_live") : t("kv_is_paused", { time: clock(this.#shown) }));
    this.slider.setAttribute("aria-valuetext", this.label.textContent);
  }

  #draw() {
    if (this.#drawn) return;
    this.#drawn = true;
    requestAnimationFrame(() => {
      this.#drawn = false;
      if (this.strip.isConnected) this.#paint();
    });
  }

  #paint() {
    const end = this.#t.at(-1) ?? Date.now() / 1000;
    Object.assign(this.slider, { min: end - SPAN_S, max: end, value: this.#shown ?? end });
    const scale = Math.min(2, window.devicePixelRatio || 1);
    const width = this.strip.clientWidth;
    this.strip.width = Math.round(width * scale);
    this.strip.height = Math.round(HEIGHT * scale);
    const context = this.strip.getContext("2d");
    context.scale(scale, scale);
    const x = (time) => ((time - (end - SPAN_S)) / SPAN_S) * width;
    context.fillStyle = colour("kv-free");
    context.fillRect(0, 0, width, HEIGHT);
    const top = Math.max(1, ...this.#counts.map(([held, cached]) => held + cached));
    const layers = [
      ["kv-cached", ([held, cached]) => held + cached],
      ["kv", ([held]) => held],
    ];
    for (const [hue, value] of layers) {
      context.fillStyle = colour(hue);
      this.#t.forEach((time, at) => {
        const next = this.#t[at + 1] ?? time + 0.5;
        const [left, right] = [x(time), x(Math.min(next, time + GAP_S))];
        const height = (HEIGHT * value(this.#counts[at])) / top;
        context.fillRect(left, HEIGHT - height, Math.max(1, right - left + 0.5), height);
      });
    }
    this.#paintCursor(context, x(this.#shown ?? end));
    const [held, cached, total] = this.#counts.at(-1) ?? [0, 0, 0];
    setText(this.top, this.#counts.length ? t("kv_strip_top", { blocks: number(top) }) : "");
    const points = number(this.#t.length);
    this.strip.title = t("kv_strip", { held: percent(held, total), cached: percent(cached, total), points });
  }

  #paintCursor(context, x) {
    context.fillStyle = colour("accent-text");
    context.fillRect(Math.max(0, x - 1.5), 0, 2, HEIGHT);
  }
}
