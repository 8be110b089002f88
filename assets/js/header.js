// The header: what the engine is, holds and does, and how old that news is. Fed by the live topic `header`.
// Invariant: when no news comes, it turns grey and says for how long; it never shows old figures as new.

import { button, fill, h, iconButton, icon, setText } from "./dom.js";
import { liveEngines, loadingEngine, sumOf } from "./engine_state.js";
import { bytes, number, percent, rate, t, word } from "./i18n.js";
import { startUnload } from "./jobs.js";
import { live } from "./live.js";
import { createMemoryBar } from "./memory_bar.js";
import { nextTheme, themeChoice } from "./theme.js";

const STALE_AFTER_S = 3.5;
const NARROW = matchMedia("(max-width: 820px)");
const THEME_ICONS = { system: "system", light: "sun", dark: "moon" };

export function createHeader() {
  const view = buildView();
  live.subscribe("header", (state) => showState(view, state));
  setInterval(() => showAge(view), 1000);
  return view.element;
}

function figure(name, label) {
  const value = h("strong", { class: "pz-figure", dataset: { figure: name } }, "–");
  return [
    h("div", { class: `pz-head-figure pz-head-${name}` }, h("span", { class: "pz-head-label" }, label), value),
    value,
  ];
}

function buildView() {
  const chip = h("span", { class: "pz-chip", "data-state": "unknown", role: "status" }, t("state_connecting"));
  const model = h("span", { class: "pz-head-model" });
  const flag = h("a", { class: "pz-flag", href: "/models", hidden: true }, icon("warning"), t("head_selftest_failed"));
  const bar = createMemoryBar("pz-head-bar");
  const [memory, memoryValue] = figure("memory", t("memory"));
  memory.append(bar.element);
  const [tokens, tokensValue] = figure("tokens", t("tokens_per_s"));
  const [kv, kvValue] = figure("kv", t("kv_used"));
  const age = h("span", { class: "pz-age pz-figure" });
  const unload = h("span", { class: "pz-head-unload" });
  const element = h(
    "header",
    { class: "pz-head" },
    h("div", { class: "pz-head-who" }, chip, model, flag),
    h("div", { class: "pz-head-figures" }, memory, tokens, kv),
    h("div", { class: "pz-head-end" }, age, unload, themeButton()),
  );
  return { element, chip, model, flag, bar, memoryValue, tokensValue, kvValue, age, unload, unloadKey: "" };
}

function themeButton() {
  const label = (choice) => t("theme_is", { choice: t(`theme_${choice}`) });
  const node = iconButton(THEME_ICONS[themeChoice()], label(themeChoice()), () => {
    const choice = nextTheme();
    fill(node, icon(THEME_ICONS[choice]));
    node.title = label(choice);
    node.setAttribute("aria-label", label(choice));
  });
  node.classList.add("pz-theme-toggle");
  return node;
}

function chipText(state) {
  if (state.state === "loading") {
    const progress = loadingEngine(state)?.progress;
    return typeof progress === "number"
      ? t("state_loading_at", { percent: number(100 * progress) })
      : t("state_loading");
  }
  if (state.state === "busy") {
    const waiting = sumOf(state, "waiting");
    return t(waiting ? "state_busy_waiting" : "state_busy_running", { running: sumOf(state, "running"), waiting });
  }
  return word("state", state.state);
}

function showState(view, state) {
  view.chip.dataset.state = state.state;
  setText(view.chip, chipText(state));
  setText(
    view.model,
    liveEngines(state)
      .map((engine) => engine.model_id)
      .join(" + "),
  );
  view.flag.hidden = !state.engines.some((engine) => engine.selftest === "failed");
  if (state.memory) {
    const { parts, total_bytes: total, available_bytes: available } = state.memory;
    view.bar.update(parts, total);
    setText(view.memoryValue, t("used_of", { used: bytes(total - available), total: bytes(total) }));
  }
  const [used, total] = [sumOf(state, "kv_blocks_used"), sumOf(state, "kv_blocks_total")];
  setText(view.tokensValue, rate(sumOf(state, "generation_tokens_per_s")));
  setText(view.kvValue, percent(used, total));
  view.kvValue.title = t("kv_blocks_of", { used: number(used), total: number(total) });
  showUnload(view, state);
  showAge(view);
}

/** One Unload per loaded model; while it drains, the same place offers to end it now. */
function showUnload(view, state) {
  const engines = liveEngines(state).filter((engine) => engine.state !== "loading");
  const forced = state.state === "unloading";
  const key = JSON.stringify([forced, engines.map((engine) => engine.model_id)]);
  if (key === view.unloadKey) return;
  view.unloadKey = key;
  const unload = async (event, engine) => {
    event.currentTarget.disabled = true;
    await startUnload(engine.model_id, forced);
    view.unloadKey = "";
  };
  const label = (engine) => {
    const action = t(forced ? "unload_now" : "unload");
    return engines.length > 1 ? `${action} ${engine.model_id}` : action;
  };
  fill(
    view.unload,
    engines.map((engine) =>
      button(engines.length > 1 ? engine.model_id : label(engine), (event) => unload(event, engine), {
        iconName: "eject",
        kind: "quiet",
        title: label(engine),
        "aria-label": label(engine),
      }),
    ),
  );
}

function showAge(view) {
  const age = live.lastMessageAt === null ? null : Math.floor((Date.now() - live.lastMessageAt) / 1000);
  const stale = age === null || age > STALE_AFTER_S;
  view.element.classList.toggle("pz-stale", stale);
  if (age === null) setText(view.age, t("connecting"));
  else setText(view.age, t(stale ? "stale_for" : NARROW.matches ? "data_old_short" : "data_old", { age }));
}
