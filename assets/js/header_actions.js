// The header's buttons that change something: Stop all and Unload. Owns when each can be pressed and what it asks.

import { api } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { button, fill, h } from "./dom.js";
import { liveEngines, sumOf } from "./engine_state.js";
import { t } from "./i18n.js";
import { startUnload } from "./jobs.js";
import { attempt, toast } from "./toast.js";
import { unloadModel } from "./unload_dialog.js";

/** {element, update(state, engine)}; `engine`: the chosen one's entry of the header's data, or null. */
export function createActions() {
  let state = null;
  const stop = button(t("head_stop_all"), () => stopAll(state), {
    kind: "quiet",
    iconName: "stop",
    class: "pz-button pz-quiet pz-stop-all",
    hidden: true,
  });
  const unload = h("span", { class: "pz-head-unload" });
  let unloadKey = "";
  function update(news, engine) {
    state = news;
    stop.hidden = liveEngines(news).length === 0;
    const busy = (sumOf(news, "running") ?? 0) + (sumOf(news, "waiting") ?? 0) > 0;
    stop.disabled = !busy;
    stop.title = t(busy ? "head_stop_all_hint" : "head_nothing_runs");
    const can = engine && liveEngines(news).includes(engine) && engine.state !== "loading";
    const forced = can && engine.state !== "ready";
    const key = can ? `${engine.id} ${forced}` : "";
    if (key === unloadKey) return;
    unloadKey = key;
    fill(unload, can ? unloadButton(engine, forced, () => (unloadKey = "")) : null);
  }
  return { element: h("span", { class: "pz-head-actions" }, stop, unload), update };
}

/** While an engine drains, the same place offers to end it now. */
function unloadButton(engine, forced, again) {
  const label = t(forced ? "head_unload_now" : "head_unload");
  const press = async (event) => {
    event.currentTarget.disabled = true;
    if (forced) await startUnload(engine.model_id, true);
    else await unloadModel(engine.model_id, engine.id);
    again();
  };
  const hint = `${t(forced ? "unload_now" : "unload")}: ${engine.model_id}`;
  return button(label, press, { iconName: "eject", kind: "quiet", title: hint, "aria-label": hint });
}

async function stopAll(state) {
  const busy = liveEngines(state).filter((engine) => engine.running + engine.waiting > 0);
  const count = busy.reduce((sum, engine) => sum + engine.running + engine.waiting, 0);
  const models = busy.map((engine) => engine.model_id).join(", ");
  const sure = await confirmDialog(t("head_stop_title"), t("head_stop_text", { count, models }), t("head_stop_all"));
  if (!sure) return;
  const done = await attempt(() => Promise.all(busy.map((engine) => api.abortAll(engine.id))));
  if (done) toast(t("head_stopped", { count: done.reduce((sum, each) => sum + each.aborted, 0) }), "ok");
}
