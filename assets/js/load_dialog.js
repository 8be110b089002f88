// Before a load: what the operator wishes, and what that will take of the memory that is free now.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, h } from "./dom.js";
import { t } from "./i18n.js";
import { startLoad } from "./jobs.js";
import { createEstimate } from "./load_estimate.js";
import { createLoadFields } from "./load_fields.js";
import { createProfiles } from "./load_profiles.js";

const TYPING_PAUSE_MS = 250;

/** `loaded`: the model is loaded, and is to be loaded anew. */
export function openLoadDialog(row, { loaded = false } = {}) {
  const fields = createLoadFields(row.context_length);
  const first = new Set(loaded ? [row.id] : []); // models to unload before
  const waiting = h("p", { class: "pz-hint", hidden: true });
  const estimate = createEstimate({ take, unload: unloadFirst });
  const profiles = createProfiles(row.id, { choose, options: fields.options, valid: fields.valid });
  const load = button(t(loaded ? "mod_reload" : "load"), start, { kind: "primary", iconName: "play" });
  const dialog = openDialog({
    title: t(loaded ? "mod_reload_model" : "load_model", { model: row.name || row.id }),
    body: [profiles.element, h("p", { class: "pz-hint" }, t("load_hint")), fields.element, estimate.element, waiting],
    actions: [button(t("cancel"), () => dialog.close()), load],
    wide: true,
  });
  let timer = 0;
  let asked = 0;

  function choose(options, sourceOf) {
    fields.set(options, sourceOf);
    ask();
  }

  function take(way) {
    fields.change(way.options);
    for (const model of way.unload) unloadFirst(model);
    if (!way.unload.length) ask();
  }

  function unloadFirst(model) {
    first.add(model);
    waiting.hidden = false;
    waiting.textContent = t("mod_will_unload", { models: [...first].join(", ") });
    ask();
  }

  async function ask() {
    const mine = (asked += 1);
    try {
      const found = await api.estimate(row.id, fields.options(), { unload_first: [...first] });
      if (mine !== asked) return;
      estimate.show(found);
      load.disabled = !fields.valid() || !found.fits;
    } catch (error) {
      if (mine !== asked) return;
      estimate.fail(error.message || t("server_unreachable"));
      load.disabled = true;
    }
  }

  async function start() {
    load.disabled = true;
    if (await startLoad(row.id, fields.options(), { unload_first: [...first] })) dialog.close();
    load.disabled = false;
  }

  fields.element.addEventListener("input", () => {
    load.disabled = !fields.valid();
    clearTimeout(timer);
    if (fields.valid()) timer = setTimeout(ask, TYPING_PAUSE_MS);
    else {
      asked += 1; // an estimate that is on its way is of what stood there before
      estimate.fail(fields.problem());
    }
  });
  offerDrafters(row, fields);
  profiles.start();
}

/** What may draft for the model; a list that cannot be read leaves the choice to the engine. */
async function offerDrafters(row, fields) {
  const found = await api.drafters(row.id).catch(() => []);
  fields.addDrafters(found.filter((drafter) => !drafter.error));
}
