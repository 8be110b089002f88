// Settings, Appearance: theme and language, kept in this browser and in force at once.

import { button, fill, h } from "./dom.js";
import { LANGUAGES, chooseLanguage, languageChoice, t } from "./i18n.js";
import { showKeys } from "./keys.js";
import { CHOICES, onThemeChange, setTheme, themeChoice } from "./theme.js";

const OWN_NAMES = { en: "English", es: "Español" };

export function mount(panel) {
  const motion = matchMedia("(prefers-reduced-motion: reduce)");
  const reduced = h("p", {});
  const showMotion = () => (reduced.textContent = t(motion.matches ? "set_motion_reduced" : "set_motion_full"));
  const themes = segments(t("set_theme"), CHOICES, (choice) => t(`theme_${choice}`), themeChoice, setTheme);
  const language = (choice) => (choice === "system" ? t("set_language_system") : OWN_NAMES[choice]);
  const languages = segments(t("set_language"), ["system", ...LANGUAGES], language, languageChoice, chooseLanguage);
  const routes = () =>
    new Map(
      document
        .querySelector("[data-routes]")
        .dataset.routes.split(" ")
        .map((r) => r.split("=")),
    );
  fill(
    panel,
    h(
      "div",
      { class: "pz-card pz-set-rows" },
      row(t("set_theme"), t("set_here"), themes.element),
      row(t("set_language"), t("set_language_hint"), languages.element),
      row(t("set_motion"), t("set_motion_hint"), reduced),
      row(
        t("keys_title"),
        t("keys_hint"),
        button(t("set_keys_show"), () => showKeys(routes()), { iconName: "keyboard" }),
      ),
    ),
  );
  showMotion();
  motion.addEventListener("change", showMotion);
  const stop = onThemeChange(themes.draw);
  return {
    destroy() {
      stop();
      motion.removeEventListener("change", showMotion);
    },
  };
}

/** A name and a hint on the left, what changes it on the right. */
export function row(name, hint, control) {
  return h(
    "div",
    { class: "pz-set-row" },
    h("div", { class: "pz-grow" }, h("h2", {}, name), hint ? h("p", { class: "pz-hint" }, hint) : null),
    h("div", { class: "pz-set-control" }, control),
  );
}

function segments(label, choices, name, present, choose) {
  const buttons = choices.map((choice) =>
    button(
      name(choice),
      () => {
        choose(choice);
        draw();
      },
      { class: "pz-button pz-segment", "data-choice": choice },
    ),
  );
  function draw() {
    buttons.forEach((node, i) => node.setAttribute("aria-pressed", String(choices[i] === present())));
  }
  draw();
  return { element: h("div", { class: "pz-segments", role: "group", "aria-label": label }, buttons), draw };
}
