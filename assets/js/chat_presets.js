// Presets in the drawer: take one over, keep what stands there as one. Built-in ones can be taken over only.

import { api } from "./api.js";
import { confirmDialog, openDialog } from "./dialog.js";
import { button, fill, h, iconButton } from "./dom.js";
import { t, word } from "./i18n.js";
import { attempt } from "./toast.js";

/** {element, match(values)}; `take({system_prompt, sampling})` when one is chosen, `values()` what stands there now. */
export function createPresets({ take, values }) {
  let presets = [];
  const choice = h("select", { class: "pz-field", id: "pz-preset" });
  const save = iconButton("plus", t("chat_preset_save"), () => askName());
  const update = iconButton("check", t("chat_preset_update"), () => keep(chosen()));
  const remove = iconButton("trash", t("chat_preset_delete"), () => drop(chosen()));
  const element = h(
    "div",
    { class: "pz-presets" },
    h("label", { class: "pz-label", for: "pz-preset" }, t("chat_preset")),
    h("div", { class: "pz-presets-row" }, choice, update, remove, save),
  );
  choice.addEventListener("change", () => {
    const preset = chosen();
    if (preset) take(preset);
    showButtons();
  });

  const chosen = () => presets.find((preset) => preset.id === choice.value);
  const nameOf = (preset) => (preset.built_in ? word("chat_preset", preset.name) : preset.name);

  async function refresh() {
    const found = await attempt(() => api.presets());
    if (!found) return;
    presets = found;
    fill(
      choice,
      h("option", { value: "" }, t("chat_preset_none")),
      presets.map((preset) => h("option", { value: preset.id }, nameOf(preset))),
    );
    match(values());
  }

  /** Show the preset that says just this, if there is one. */
  function match(current) {
    const known = presets.find((preset) => preset.id === choice.value && same(preset, current));
    choice.value = (known ?? presets.find((preset) => same(preset, current)))?.id ?? "";
    showButtons();
  }

  function showButtons(edited = false) {
    const preset = chosen();
    remove.disabled = !preset || preset.built_in;
    update.disabled = !edited || !preset || preset.built_in;
  }

  /** Something was typed: what was chosen may be brought up to it. */
  function onEdit() {
    const preset = chosen();
    if (!preset) match(values());
    else if (preset.built_in) choice.value = same(preset, values()) ? preset.id : "";
    showButtons(preset && !preset.built_in && !same(preset, values()));
  }

  function askName() {
    const field = h("input", { class: "pz-field", maxlength: 100, "aria-label": t("chat_preset_name") });
    const done = async () => {
      const name = field.value.trim();
      if (!name) return;
      const made = await attempt(() => api.addPreset({ name, ...values() }));
      if (!made) return;
      dialog.close();
      await refresh();
      choice.value = made.id;
      showButtons();
    };
    const dialog = openDialog({
      title: t("chat_preset_save"),
      body: [
        h("label", { class: "pz-label" }, t("chat_preset_name"), field),
        h("p", { class: "pz-hint" }, t("chat_preset_hint")),
      ],
      actions: [button(t("cancel"), () => dialog.close()), button(t("chat_preset_keep"), done, { kind: "primary" })],
    });
  }

  async function keep(preset) {
    const changed = await attempt(() => api.changePreset(preset.id, { name: preset.name, ...values() }));
    if (changed) await refresh();
  }

  async function drop(preset) {
    const text = t("chat_preset_delete_text", { name: preset.name });
    if (!(await confirmDialog(t("chat_preset_delete"), text, t("delete")))) return;
    if ((await attempt(() => api.deletePreset(preset.id))) !== undefined) await refresh();
  }

  refresh();
  return { element, match, onEdit };
}

/** Whether a preset says what stands in the drawer; order of the fields does not matter. */
function same(preset, { system_prompt: system, sampling }) {
  const sorted = (fields) => JSON.stringify(Object.entries(fields).sort(([a], [b]) => a.localeCompare(b)));
  return preset.system_prompt === system && sorted(preset.sampling) === sorted(sampling);
}
