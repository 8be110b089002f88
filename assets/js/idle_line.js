// When a loaded engine will be unloaded because nobody asks it for anything: a countdown, and the way to change it.

import { api } from "./api.js";
import { button, h, setText } from "./dom.js";
import { number, seconds, t } from "./i18n.js";
import { attempt } from "./toast.js";

const CHOICES_S = [300, 900, 1800, 3600, 4 * 3600, 24 * 3600];
const TICK_MS = 1000;
const lines = new Set();

// one clock for all lines that have an engine; a line that has left the page leaves the clock
setInterval(() => {
  for (const line of lines) {
    if (line.element.isConnected) line.tick();
    else lines.delete(line);
  }
}, TICK_MS);

/** {element, update(engine)}; engine: an entry of /api/engines. changed(): called when the time was changed here. */
export function idleLine(changed) {
  let shown = null;
  const text = h("span", { class: "pz-grow pz-figure", role: "timer" });
  const select = h(
    "select",
    { class: "pz-field pz-idle-choice", "aria-label": t("mod_idle_choice"), onchange: () => change(select.value === "" ? null : Number(select.value)) },
    h("option", { value: "" }, t("mod_never")),
    CHOICES_S.map((value) => h("option", { value }, span(value))),
  );
  const keep = button(t("mod_keep_loaded"), () => change(null), { kind: "quiet" });
  const element = h("div", { class: "pz-hint pz-row pz-idle" }, text, select, keep);

  async function change(idle_unload_s) {
    const now = await attempt(() => api.changeEngine(shown.id, { idle_unload_s }));
    if (!now) return;
    update({ ...shown, idle_unload_s: now.idle_unload_s, idle_unload_at: now.idle_unload_at });
    changed();
  }

  function tick() {
    if (!shown) return;
    const { idle_unload_s: after, idle_unload_at: at } = shown;
    keep.hidden = after === null;
    if (after === null) setText(text, t("mod_stays"));
    else if (at === null) setText(text, t("mod_idle_busy", { time: span(after) }));
    else setText(text, t("mod_idle_in", { time: countdown(Math.max(0, Math.round(at - Date.now() / 1000))) }));
  }

  function update(engine) {
    shown = engine;
    lines.add(line);
    const value = engine.idle_unload_s === null ? "" : String(engine.idle_unload_s);
    if (![...select.options].some((option) => option.value === value))
      select.append(h("option", { value }, span(engine.idle_unload_s)));
    if (document.activeElement !== select) select.value = value;
    tick();
  }

  const line = { element, update, tick };
  return line;
}

const countdown = (value) => (value < 60 ? t("mod_seconds", { n: number(value) }) : seconds(value));

const span = (value) =>
  value >= 3600 && value % 3600 === 0
    ? t("mod_hours", { n: value / 3600 })
    : value % 60 === 0
      ? t("mod_minutes", { n: value / 60 })
      : countdown(value);
