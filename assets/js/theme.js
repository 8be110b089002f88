// Dark, light, or as the system says. Kept in this browser; the first paint is done by a line in the page's head.

const KEY = "pizarra.theme";
export const CHOICES = ["system", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function themeChoice() {
  const stored = localStorage.getItem(KEY);
  return CHOICES.includes(stored) ? stored : "system";
}

function apply() {
  const choice = themeChoice();
  const dark = choice === "dark" || (choice === "system" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.body.classList.toggle("dark", dark);
  for (const listener of listeners) listener();
}

export function setTheme(choice) {
  localStorage.setItem(KEY, choice);
  apply();
}

export function nextTheme() {
  setTheme(CHOICES[(CHOICES.indexOf(themeChoice()) + 1) % CHOICES.length]);
  return themeChoice();
}

/** For what is drawn in pixels: canvases and plots read their colours anew. Returns the way to stop. */
export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** A colour of tokens.css. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--pz-${name}`).trim();
}

system.addEventListener("change", apply);
addEventListener("storage", (event) => event.key === KEY && apply()); // chosen in another tab
apply();
