// Texts and numbers in the language that was chosen on this browser, else the browser's own. The same JSON files serve
// Gradio's labels, for which a line in the page's head makes the browser name the chosen language (ui/theme.py).

export const LANGUAGES = ["en", "es"];
const KEY = "pizarra.language";

/** "en", "es", or "system": as the browser says. */
export function languageChoice() {
  const stored = localStorage.getItem(KEY);
  return LANGUAGES.includes(stored) ? stored : "system";
}

/** Keep the choice in this browser. Texts are read once a page, so the page begins anew. */
export function chooseLanguage(choice) {
  if (choice === languageChoice()) return;
  if (choice === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, choice);
  location.reload();
}

const ofBrowser = LANGUAGES.find((code) => navigator.language.toLowerCase().startsWith(code)) ?? "en";

export const language = languageChoice() === "system" ? ofBrowser : languageChoice();
document.documentElement.lang = language;

const texts = await (await fetch(`/assets/i18n/${language}.json`)).json();

/** The text of a key, with {name} filled from `values`. A missing key shows itself rather than nothing. */
export function t(key, values = {}) {
  const text = texts[key];
  if (text === undefined) {
    console.error(`no text for ${key} in ${language}.json`);
    return key;
  }
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

/** A text whose key is made from the server's word, or that word when the server knows more words than we do. */
export function word(prefix, value) {
  return texts[`${prefix}_${value}`] ?? String(value);
}

const numbers = new Map();

export function number(value, digits = 0) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!numbers.has(digits)) {
    numbers.set(
      digits,
      new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits }),
    );
  }
  return numbers.get(digits).format(value);
}

/** Bytes in binary units, three significant digits: "0.62 GiB", "98.0 MiB". */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 MiB";
  const [size, unit] =
    value >= 0.1 * 2 ** 30
      ? [value / 2 ** 30, "GiB"]
      : value >= 2 ** 20
        ? [value / 2 ** 20, "MiB"]
        : [value / 1024, "KiB"];
  return `${number(size, size >= 100 ? 0 : size >= 10 ? 1 : 2)} ${unit}`;
}

export function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  return `${number(share, share > 0 && share < 10 ? 1 : 0)} %`;
}

export function rate(value) {
  return number(value, value && value < 100 ? 1 : 0);
}

/** A number of parameters: "95 K", "135 M", "1.2 B". */
export function parameters(value) {
  if (!value) return "–";
  if (value < 1e6) return `${number(value / 1e3)} K`;
  return value >= 1e9 ? `${number(value / 1e9, value >= 1e10 ? 0 : 1)} B` : `${number(value / 1e6)} M`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${number(value * 1000)} ms`;
  if (value < 60) return `${number(value, value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} min ${number(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const ago = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });

export function timeAgo(epoch) {
  const age = epoch - Date.now() / 1000;
  for (const [unit, size] of [
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
  ]) {
    if (Math.abs(age) >= size) return ago.format(Math.round(age / size), unit);
  }
  return ago.format(Math.min(0, Math.round(age)), "second");
}

const clockFormat = new Intl.DateTimeFormat(language, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const dayFormat = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" });

/** The time of today, or the date and time of an earlier day. */
export function clock(epoch) {
  const date = new Date(epoch * 1000);
  return date.toDateString() === new Date().toDateString() ? clockFormat.format(date) : dayFormat.format(date);
}
