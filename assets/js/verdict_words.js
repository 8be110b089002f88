// A verdict in words: state, sentence, reason, advice. The server sends codes and numbers, this puts them into a
// language. Pure functions; a code that is not known here shows itself.

import { bytes, number, t, word } from "./i18n.js";

const DIGITS = 2;

export const times = (value) => (value === null ? "–" : `×${number(value, DIGITS)}`);

export const stateWord = (state) => word("spec_state", state);

/** The word for a state of which a model that is there, but not ready, is told apart from none. */
export const shownState = (verdict) =>
  verdict === null ? "none" : verdict.reason?.code === "not_ready" ? "not_ready" : verdict.state;

/** One sentence that answers the question. */
export function sentence(verdict) {
  const { speedup, low, high, proposer } = verdict;
  const state = shownState(verdict);
  if (speedup === null || !["pays", "even", "costs"].includes(state)) return word("spec_sentence", state);
  const figures = { speedup: number(speedup, DIGITS), low: number(low, DIGITS), high: number(high, DIGITS), proposer };
  return t(`spec_sentence_${state}`, figures);
}

/** Why there is no answer; empty where there is one. */
export function reasonText({ reason, proposer }) {
  if (!reason || reason.code === "not_ready") return ""; // the sentence says it
  return filled(`spec_reason_${reason.code}`, { ...reason, proposer }, reason.text ?? reason.code);
}

export const adviceTexts = (verdict) =>
  verdict.advice.map((each) => filled(`spec_advice_${each.code}`, each, each.code));

function filled(key, values, otherwise) {
  const text = word("spec", key.slice("spec_".length));
  if (text === key.slice("spec_".length)) return otherwise;
  const shown = {
    ...values,
    speedup: typeof values.speedup === "number" ? times(values.speedup) : "",
    steps: number(values.steps),
    needed: number(values.needed),
    tokens: number(values.tokens),
    bytes: bytes(values.bytes),
    age: duration(values.age_s),
    most: duration(values.most_s),
  };
  return t(key, shown);
}

/** "1", "2", "5 to 8". */
export const spanText = (from, to) =>
  to === null
    ? t("spec_from", { from: number(from) })
    : from === to
      ? number(from)
      : t("spec_span", { from: number(from), to: number(to) });

export const milliseconds = (value) => (value === null ? "–" : `${number(value, value < 10 ? 2 : 1)} ms`);

export const decimal = (value) => (value === null ? "–" : number(value, DIGITS));

/** How old a moment is by the server's own clock. */
export const ageText = (moment, now) => (moment === null ? "–" : duration(Math.max(0, now - moment)));

function duration(value) {
  if (typeof value !== "number") return "–";
  if (value < 60) return `${number(value)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
