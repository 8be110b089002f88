// Unloading: at once where nobody is served; else what holds it up, and whether to wait for that or to end it.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, h } from "./dom.js";
import { seconds, t, word } from "./i18n.js";
import { startUnload } from "./jobs.js";
import { attempt } from "./toast.js";

const SHOWN_BLOCKERS = 12;

export async function unloadModel(modelId, engineId) {
  const now = await attempt(() => api.engineNow(engineId));
  if (!now) return;
  if (now.blockers.length) ask(modelId, now);
  else await startUnload(modelId);
}

function ask(modelId, now) {
  const wait = h("input", { class: "pz-field pz-figure", type: "number", min: 1, max: 86400, value: Math.max(1, Math.round(now.drain_timeout_s)) });
  const go = async (force) => {
    const more = force ? {} : { drain_s: Number(wait.value) };
    if (await startUnload(modelId, force, more)) dialog.close();
  };
  const dialog = openDialog({
    title: t("mod_unload_busy", { model: modelId }),
    body: [
      h("p", {}, t("mod_blockers", { n: now.blockers.length })),
      h(
        "div",
        { class: "pz-table-wrap" },
        h(
          "table",
          { class: "pz-table" },
          h("thead", {}, h("tr", {}, ["mod_request", "mod_from", "mod_age"].map((key) => h("th", {}, t(key))))),
          h("tbody", {}, now.blockers.slice(0, SHOWN_BLOCKERS).map(blocker)),
        ),
      ),
      now.blockers.length > SHOWN_BLOCKERS ? h("p", { class: "pz-hint" }, t("mod_more", { n: now.blockers.length - SHOWN_BLOCKERS })) : null,
      h("label", { class: "pz-label" }, t("mod_drain_s"), wait),
      h("p", { class: "pz-hint" }, t("mod_drain_hint")),
    ],
    actions: [
      button(t("cancel"), () => dialog.close()),
      button(t("mod_unload_force"), () => go(true), { kind: "danger" }),
      button(t("mod_unload_drain"), () => go(false), { kind: "primary", iconName: "eject" }),
    ],
  });
}

const blocker = (each) =>
  h(
    "tr",
    {},
    h("td", {}, h("a", { href: `/requests?id=${encodeURIComponent(each.id)}` }, each.id.slice(0, 12))),
    h("td", {}, each.source === null ? t("mod_from_own_work") : word("mod_source_of", each.source)),
    h("td", {}, each.age_s === null ? "–" : seconds(each.age_s)),
  );
