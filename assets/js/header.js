// The header: what the chosen engine is, holds and does, and how old that news is. Fed by the live topic `header`.
// Invariant: when no news comes, it turns grey and says for how long; it never shows old figures as new.

import { chooseEngine, chosenEntry } from "./chosen_engine.js";
import { fill, h, icon, iconButton, setText } from "./dom.js";
import { createActions } from "./header_actions.js";
import { createBell } from "./header_bell.js";
import { bytes, number, percent, rate, seconds, t, word } from "./i18n.js";
import { live } from "./live.js";
import { createMemoryBar } from "./memory_bar.js";
import { nextTheme, onThemeChange, themeChoice } from "./theme.js";
import { toast } from "./toast.js";
import { reasonText } from "./verdict_words.js";

const STALE_AFTER_S = 3.5;
const NARROW = matchMedia("(max-width: 820px)");
const SHORT = matchMedia("(max-width: 1320px)");
const COMPACT = matchMedia("(max-width: 1500px)");
const THEME_ICONS = { system: "system", light: "sun", dark: "moon" };

export function createHeader() {
  const view = buildView();
  live.subscribe("header", (state) => showState(view, state));
  setInterval(() => {
    showAge(view);
    showCountdown(view);
  }, 1000);
  return view.element;
}

function figure(name, label, definition) {
  const value = h("strong", { class: "pz-figure", dataset: { figure: name } }, "–");
  return [
    h(
      "div",
      { class: `pz-head-figure pz-head-${name}`, title: definition },
      h("span", { class: "pz-head-label" }, label),
      value,
    ),
    value,
  ];
}

function buildView() {
  const view = { state: null, seen: new Map(), namesKey: "" };
  view.chip = h("span", { class: "pz-chip", "data-state": "unknown", role: "status" }, t("state_connecting"));
  view.age = h("span", { class: "pz-age pz-figure" });
  view.names = h("span", { class: "pz-head-names" });
  view.details = h("span", { class: "pz-head-details" });
  view.countdown = h("span", { class: "pz-head-countdown pz-figure" });
  view.flag = h("a", { class: "pz-flag", href: "/models", hidden: true }, icon("warning"), t("head_selftest_failed"));
  view.bar = createMemoryBar("pz-head-bar");
  const [memory, memoryValue] = figure("memory", t("memory"));
  memory.append(view.bar.element);
  const [tokens, tokensValue] = figure("tokens", t("tokens_per_s"), t("head_tokens_definition"));
  const [ttft, ttftValue] = figure("ttft", t("head_ttft"), t("head_ttft_definition"));
  view.memoryLabel = memory.firstChild;
  Object.assign(view, { memoryValue, tokensValue, ttftValue });
  view.spec = h("a", { class: "pz-spec-chip", href: "/monitor?tab=speculation", dataset: { figure: "speculation" } });
  view.speculation = h(
    "div",
    { class: "pz-head-figure pz-head-speculation", hidden: true },
    h("span", { class: "pz-head-label" }, t("head_speculation")),
    view.spec,
  );
  view.bell = createBell();
  view.actions = createActions();
  view.element = h(
    "header",
    { class: "pz-head" },
    h(
      "div",
      { class: "pz-head-who" },
      h("div", { class: "pz-head-state" }, view.chip, view.age),
      h(
        "div",
        { class: "pz-head-model" },
        view.names,
        h("span", { class: "pz-head-sub" }, view.details, view.countdown),
      ),
      view.flag,
    ),
    h("div", { class: "pz-head-figures" }, memory, tokens, ttft, view.speculation),
    h("div", { class: "pz-head-end" }, view.bell.element, view.actions.element, themeButton()),
  );
  return view;
}

function themeButton() {
  const label = () => t("theme_is", { choice: t(`theme_${themeChoice()}`) });
  const node = iconButton(THEME_ICONS[themeChoice()], label(), () => nextTheme());
  onThemeChange(() => {
    fill(node, icon(THEME_ICONS[themeChoice()]));
    node.title = label();
    node.setAttribute("aria-label", label());
  });
  node.classList.add("pz-theme-toggle");
  return node;
}

/** One word for an engine, as the chip and the selector show it. */
function stateOf(engine) {
  if (!engine) return "no_model";
  if (engine.state === "draining") return "unloading";
  return engine.state === "ready" && engine.running + engine.waiting > 0 ? "busy" : engine.state;
}

function stateText(engine) {
  const state = stateOf(engine);
  if (state === "loading" && typeof engine.progress === "number")
    return t("state_loading_at", { percent: number(100 * engine.progress) });
  if (state === "busy") {
    const { running, waiting } = engine;
    const kind = waiting ? "waiting" : "running";
    return SHORT.matches ? t(`head_busy_${kind}`, { running, waiting }) : t(`state_busy_${kind}`, { running, waiting });
  }
  return word("state", state);
}

function showState(view, state) {
  const engine = chosenEntry(state);
  view.state = state;
  tellEnds(view, state);
  view.chip.dataset.state = stateOf(engine);
  setText(view.chip, stateText(engine));
  view.chip.title = engine?.error ?? view.chip.textContent;
  showNames(view, state, engine);
  setText(view.details, details(engine));
  view.flag.hidden = !state.engines.some((each) => each.selftest_failed);
  showMemory(view, state, engine);
  setText(view.tokensValue, rate(engine?.generation_tokens_per_s));
  setText(view.ttftValue, seconds(engine?.ttft_p95_s));
  showSpeculation(view, engine?.speculation);
  view.bell.update(state.alerts);
  view.actions.update(state, engine);
  showCountdown(view);
  showAge(view);
}

/** An engine that ended by itself is told wherever one is, also when another one is spoken of here. */
function tellEnds(view, state) {
  for (const engine of state.engines) {
    const before = view.seen.get(engine.id);
    if (engine.state === "failed" && before !== undefined && before !== "failed" && before !== "loading")
      toast(engine.error ?? t("head_engine_failed", { model: engine.model_id }), "error");
  }
  view.seen = new Map(state.engines.map((engine) => [engine.id, engine.state]));
}

function showNames(view, state, engine) {
  const others = state.engines.filter((each) => each !== engine);
  const label = (each) =>
    stateOf(each) === "ready" ? each.model_id : `${each.model_id} · ${word("state", stateOf(each))}`;
  const key = JSON.stringify([engine?.model_id, state.engines.map(label)]);
  if (key === view.namesKey) return;
  view.namesKey = key;
  if (!others.length) {
    fill(view.names, h("strong", { title: engine?.model_id ?? "" }, engine?.model_id ?? ""));
    return;
  }
  const select = h(
    "select",
    { class: "pz-field pz-engine-select", "aria-label": t("head_engine"), title: engine.model_id },
    state.engines.map((each) => h("option", { value: each.model_id }, label(each))),
  );
  select.value = engine.model_id;
  select.addEventListener("change", () => {
    chooseEngine(select.value);
    view.namesKey = "";
    showState(view, view.state);
  });
  fill(view.names, select);
}

/** Storage format, type of activations, who drafts. */
function details(engine) {
  if (!engine) return "";
  const { drafter } = engine;
  const drafts = drafter ? [drafter.proposer, drafter.name].filter(Boolean).join(" ") : null;
  return [engine.quantization ?? engine.dtype, drafts].filter(Boolean).join(" · ");
}

function showMemory(view, state, engine) {
  const onGpu = state.gpu.parts && engine?.device && engine.device !== "cpu";
  setText(view.memoryLabel, t(onGpu ? "head_gpu_memory" : "memory"));
  const parts = onGpu ? state.gpu.parts : state.memory?.parts;
  if (!parts) return;
  const total = onGpu ? state.gpu.memory_total_bytes : state.memory.total_bytes;
  const free = parts.find((part) => part.name === "free").bytes;
  view.bar.update(parts, total);
  const used = total - free;
  const full = t("used_of", { used: bytes(used), total: bytes(total) });
  setText(view.memoryValue, COMPACT.matches ? `${number(used / 2 ** 30, 1)} / ${bytes(total)}` : full);
  view.memoryValue.title = `${full} (${percent(used, total)})`;
}

function showSpeculation({ speculation: around, spec: chip }, speculation) {
  around.hidden = !speculation || speculation.state === "none";
  if (around.hidden) return;
  const { state, gain, low, high, proposer } = speculation;
  const known = typeof gain === "number";
  chip.dataset.state = state;
  setText(chip, known && ["pays", "even", "costs"].includes(state) ? gainText(state, gain) : stateWord(state));
  const interval =
    known && typeof low === "number" ? t("head_spec_interval", { low: number(low, 2), high: number(high, 2) }) : null;
  chip.title = [t("head_spec_definition"), proposer, interval, reasonText({ reason: speculation.why, proposer })]
    .filter(Boolean)
    .join("\n");
}

const gainText = (state, gain) => t(`head_gain_${state}`, { gain: number(gain, gain < 10 ? 1 : 0) });
const stateWord = (state) => t(`head_spec_${state}`);

function showCountdown(view) {
  const at = chosenEntry(view.state)?.idle_unload_at;
  const left = typeof at === "number" ? Math.max(0, Math.ceil(at - Date.now() / 1000)) : null;
  const clock = left === null ? "" : `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
  setText(view.countdown, left === null ? "" : t("head_unloads_in", { left: clock }));
  view.countdown.title = left === null ? "" : t("head_unloads_definition");
}

function showAge(view) {
  const age = live.lastMessageAt === null ? null : Math.floor((Date.now() - live.lastMessageAt) / 1000);
  const stale = age === null || age > STALE_AFTER_S;
  view.element.classList.toggle("pz-stale", stale);
  if (age === null) setText(view.age, t("connecting"));
  else setText(view.age, t(stale ? "stale_for" : NARROW.matches ? "data_old_short" : "data_old", { age }));
}
