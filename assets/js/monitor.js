// The monitor page: tabs over one shared stretch of time. Owns what is looked at (tab, range, engine, pause), which the
// address holds, too. What a tab shows is the tab's own: mount(element, tab) -> {destroy()}, where `tab` has
// onWindow(listener(window, view)), onNewest(listener(window)), range(), engine(); see docs/architecture.md.

import { chosenEngine } from "./chosen_engine.js";
import { createCrosshair } from "./crosshair.js";
import { button, fill, h, icon, setText } from "./dom.js";
import { createEngineChoice } from "./engine_choice.js";
import { createEventMarkers, eventList } from "./event_markers.js";
import { gapSentences, gapsWithReasons } from "./gap_reasons.js";
import { clock, t } from "./i18n.js";
import { readAddress, writeAddress } from "./monitor_address.js";
import { SharedWindow } from "./shared_window.js";
import { createTabs } from "./tabs.js";
import { createRangePicker } from "./time_range.js";
import { attempt, toast } from "./toast.js";

/** A tab's module may export COLUMNS and BANDS: what it reads of the samples; without them it gets every column. */
const TABS = {
  glance: () => import("./monitor_glance.js"),
  memory: () => import("./monitor_memory.js"),
  kv: () => import("./kv_map.js"),
  speculation: () => import("./speculation_tab.js"),
  latency: () => import("./monitor_latency.js"),
  gpu: () => import("./monitor_gpu.js"),
};

/** These speak of one engine: without a choice here, of the one chosen in the header. */
const OF_ONE = new Set(["kv", "speculation"]);

class Monitor {
  #state = readAddress(location.search, Object.keys(TABS));
  #open = null; // the mounted tab
  #opening = 0;
  #crosshair = createCrosshair();

  constructor(element) {
    this.tabs = createTabs(
      Object.keys(TABS).map((name) => [name, t(`mon_tab_${name}`)]),
      t("mon_tabs"),
      (tab) => this.#go({ tab }),
    );
    this.picker = createRangePicker((range) => this.#go({ range, pausedAt: null }));
    this.engines = createEngineChoice((engine) => this.#go({ engine }));
    this.pause = button("", () => this.#togglePause(), { class: "pz-button pz-secondary pz-pause" });
    this.note = h("p", { class: "pz-sentence", role: "status" });
    this.gaps = h("ul", { class: "pz-gaps pz-hint", "aria-label": t("mon_gaps") });
    this.body = this.tabs.panel;
    this.events = h("ul", { class: "pz-events" });
    this.eventsTitle = h("summary", {}, t("mon_events", { n: 0 }));
    this.markers = createEventMarkers(() => this.window.redraw());
    this.window = new SharedWindow({
      onState: (state) => this.#showState(state),
      decorate: (view, window) => this.#decorate(view, window),
    });
    fill(element, this.#layout());
    this.#openTab();
  }

  #layout() {
    return [
      h(
        "div",
        { class: "pz-page-head pz-row" },
        h("div", { class: "pz-grow" }, h("h1", {}, t("nav_monitor")), this.note),
        this.engines.element,
        this.picker.element,
        this.pause,
      ),
      this.picker.form,
      this.tabs.element,
      this.gaps,
      this.body,
      h("details", { class: "pz-twin pz-card pz-range-events" }, this.eventsTitle, this.events),
    ];
  }

  #go(change) {
    const before = this.#state;
    this.#state = { ...before, ...change };
    if (before.tab !== this.#state.tab) this.#openTab();
    else this.#ask();
  }

  #remember() {
    history.replaceState(null, "", location.pathname + writeAddress(this.#state));
    this.tabs.show(this.#state.tab);
    this.picker.show(this.#state.range);
    this.engines.show(this.#state.engine);
    this.#showPause();
  }

  async #openTab() {
    const mine = (this.#opening += 1);
    this.#open?.destroy();
    this.#open = null;
    this.#remember();
    fill(this.body, h("p", { class: "pz-empty", role: "status" }, t("mon_loading")));
    const module = await attempt(() => TABS[this.#state.tab]()).catch((error) => {
      fill(this.body, h("p", { class: "pz-problem" }, icon("warning"), t("mon_tab_failed", { error: error.message })));
    });
    if (mine !== this.#opening || !module) return;
    this.module = module;
    this.#ask();
    fill(this.body);
    this.#open = module.mount(this.body, this.#tab());
  }

  /** What a tab is given. */
  #tab() {
    return {
      onWindow: (listener) => this.window.onWindow(listener),
      onNewest: (listener) => this.window.onNewest(listener),
      range: () => this.window.range(),
      engine: () => this.engines.id() ?? (OF_ONE.has(this.#state.tab) ? chosenEngine() : null),
    };
  }

  #ask() {
    this.#remember();
    const { range, pausedAt } = this.#state;
    const { COLUMNS: columns = null, BANDS: bands = [] } = this.module ?? {};
    this.window.open({ range, pausedAt, engine: this.engines.id(), columns, bands });
    const { since, until, live } = this.window.range();
    attempt(() => this.markers.read(since, until, live));
    this.engines.read(since, until);
  }

  #togglePause() {
    const pausedAt = this.#state.pausedAt === null ? Date.now() / 1000 : null;
    this.#state = { ...this.#state, pausedAt };
    this.#remember();
    this.window.pause(pausedAt);
  }

  #showPause() {
    const { range, pausedAt } = this.#state;
    const paused = pausedAt !== null;
    fill(this.pause, icon(paused ? "play" : "pause"), h("span", {}, t(paused ? "resume" : "pause")));
    this.pause.setAttribute("aria-pressed", String(paused));
    this.pause.hidden = range.name === "custom"; // its end does not move
  }

  /** What every plot of the tab shows besides its own lines. */
  #decorate(view, window) {
    const gaps = gapsWithReasons(window, view.window, (time) => this.engines.causeOf(time));
    const markers = this.markers.of(view.window);
    this.#showNews(markers, gapSentences(gaps));
    this.#showSpan(window);
    const notes = [t("mon_csv_engine", { engine: this.engines.element.selectedOptions[0]?.textContent ?? "" })];
    return { ...view, gaps, markers, crosshair: this.#crosshair, notes };
  }

  /** Lists are made anew only when they say something else: someone may be reading them. */
  #showNews(markers, sentences) {
    const key = JSON.stringify([markers.map(({ event }) => event.id), sentences]);
    if (key === this.newsKey) return;
    this.newsKey = key;
    setText(this.eventsTitle, t("mon_events", { n: markers.length }));
    eventList(this.events, markers);
    fill(
      this.gaps,
      sentences.map((text) => h("li", {}, text)),
    );
  }

  #showSpan(window) {
    const first = window.firstKnown("host_memory_used_bytes");
    const { pausedAt } = this.#state;
    const said = first === null ? t("no_samples") : t("samples_since", { since: clock(first), step: period(window) });
    setText(this.note, pausedAt === null ? said : `${said} ${t("mon_paused_at", { time: clock(pausedAt) })}`);
  }

  #showState(state) {
    this.body.setAttribute("aria-busy", String(state === "loading"));
    if (state === "loading") setText(this.note, t("mon_loading"));
    else if (state !== null) {
      setText(this.note, state);
      toast(state, "error");
    }
  }
}

const period = ({ stepS }) => (stepS < 60 ? `${stepS} s` : stepS < 3600 ? `${stepS / 60} min` : `${stepS / 3600} h`);

export function mount(element) {
  return new Monitor(element);
}
