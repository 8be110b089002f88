// The sampling fields of /v1 by group: how each is typed, read into a body and filled from one. Owns the list; knows
// nothing of defaults, which an engine tells.

import { t } from "./i18n.js";
import { readJson } from "./play_json.js";

const lines = {
  input: "lines",
  read: (text) => text.split("\n").filter(Boolean),
  write: (value) => [].concat(value).join("\n"),
};
const ids = {
  input: "text",
  read: (text) => {
    const parts = text.split(/[\s,]+/).filter(Boolean);
    if (parts.some((part) => !/^\d{1,9}$/.test(part))) throw new Error(t("play_not_ids"));
    return parts.map(Number);
  },
  write: (value) => value.join(", "),
};
const whole = { input: "number", step: 1, read: Number, write: String };
const real = { input: "number", step: "any", read: Number, write: String };
const flag = { input: "check", read: Boolean, write: Boolean };
const json = {
  input: "text",
  read: (text) => {
    const { value, error } = readJson(text);
    if (error) throw new Error(error);
    return value;
  },
  write: (value) => JSON.stringify(value),
};
const seed = {
  input: "text",
  read: (text) => {
    const value = Number(text);
    if (!/^\d+$/.test(text.trim())) throw new Error(t("seed_not_a_number"));
    if (!Number.isSafeInteger(value)) throw new Error(t("play_seed_too_large"));
    return value;
  },
  write: String,
};
const choice = (...options) => ({ input: "choice", options, read: (text) => text, write: (value) => value });
const speculation = {
  input: "choice",
  options: ["off"],
  read: () => false,
  write: (value) => (value === false ? "off" : ""),
};

export const GROUPS = {
  length: { max_tokens: whole, min_tokens: whole, stop: lines, stop_token_ids: ids, ignore_eos: flag },
  draw: { temperature: real, seed },
  filters: { top_k: whole, top_p: real, min_p: real, typical_p: real, xtc_probability: real, xtc_threshold: real },
  penalties: { repetition_penalty: real, presence_penalty: real, frequency_penalty: real },
  dry: { dry_multiplier: real, dry_base: real, dry_allowed_length: whole, dry_sequence_breakers: json },
  tokens: { logit_bias: json, bad_words: lines, allowed_token_ids: ids },
  more: {
    n: { ...whole, minimum: 1, maximum: 8 },
    logprobs: { ...whole, minimum: 0, maximum: 20 },
    logprobs_mode: choice("processed"),
    include_stop_str_in_output: flag,
    speculation,
    cache_salt: { input: "text", read: (text) => text, write: String },
    priority: whole,
  },
};
export const OPEN = ["length", "draw"];
