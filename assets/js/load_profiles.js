// The saved load options of a model: which one is used, save and delete. Knows nothing of estimates.

import { api } from "./api.js";
import { button, fill, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { attempt } from "./toast.js";

export const LAST = "last used";
const BUILT_IN = "";

/** The name of a profile as it is shown. */
const profileName = (name) => (name === LAST ? t("mod_profile_last") : name === BUILT_IN ? t("mod_profile_built_in") : name);

/**
 * {element, start()}. choose(options, sourceOf): these fill the fields; options(): what the fields say now.
 */
export function createProfiles(modelId, { choose, options, valid }) {
  const select = h("select", { class: "pz-field", onchange: () => use(select.value) });
  const name = h("input", { class: "pz-field", maxlength: 100, placeholder: t("mod_profile_name"), "aria-label": t("mod_profile_name") });
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    event.stopPropagation(); // it would begin the load
    save();
  });
  const isDefault = h("input", { type: "checkbox" });
  const erase = iconButton("trash", t("mod_profile_delete"), remove);
  const note = h("p", { class: "pz-hint", hidden: true });
  const element = h(
    "div",
    { class: "pz-profiles" },
    h(
      "div",
      { class: "pz-row" },
      h("label", { class: "pz-label pz-grow" }, t("mod_profile"), select),
      erase,
    ),
    h(
      "details",
      { class: "pz-log" },
      h("summary", {}, t("mod_profile_save")),
      h(
        "div",
        { class: "pz-row pz-profile-save" },
        name,
        h("label", { class: "pz-check" }, isDefault, t("mod_profile_default")),
        button(t("mod_profile_keep"), save, { kind: "quiet" }),
      ),
    ),
    note,
  );
  let known = { profiles: [], chosen: null, other_weights: 0 };

  function draw(found, selected) {
    known = found;
    const names = [BUILT_IN, ...found.profiles.map((each) => each.name)];
    fill(
      select,
      names.map((each) => h("option", { value: each }, label(each))),
    );
    select.value = selected;
    erase.disabled = select.value === BUILT_IN;
    note.hidden = !found.other_weights;
    note.textContent = t("mod_profile_other_weights", { n: found.other_weights });
  }

  const label = (each) =>
    known.profiles.find((profile) => profile.name === each)?.is_default
      ? `${profileName(each)} (${t("default")})`
      : profileName(each);

  function use(which) {
    const saved = known.profiles.find((each) => each.name === which)?.options ?? {};
    select.value = which;
    erase.disabled = which === BUILT_IN;
    choose(saved, (option) => profileName(option in saved ? which : BUILT_IN));
  }

  async function start() {
    const found = await attempt(() => api.profiles(modelId));
    if (!found) return use(BUILT_IN);
    draw(found, found.chosen ?? BUILT_IN);
    return use(found.chosen ?? BUILT_IN);
  }

  async function save() {
    const wanted = name.value.trim();
    if (!wanted || !valid()) return name.focus();
    const fields = { options: options(), default: isDefault.checked };
    const found = await attempt(() => api.saveProfile(modelId, wanted, fields));
    if (!found) return undefined;
    draw(found, wanted);
    return use(wanted);
  }

  async function remove() {
    const found = await attempt(() => api.deleteProfile(modelId, select.value));
    if (!found) return;
    draw(found, found.chosen ?? BUILT_IN);
    use(found.chosen ?? BUILT_IN);
  }

  return { element, start };
}
