// How a request's figures are worded: in the list, in the detail, and by whatever else shows one.

import { number, percent, seconds, t, word } from "./i18n.js";

export const shortId = (id) => id.slice(0, 8);

export const sourceText = (source) => t(`req_source_${source}`);

export const tokensText = (row) =>
  t("in_out", { input: number(row.num_prompt_tokens), output: number(row.num_output_tokens) });

/** Accepted of what was drafted; a dash where nothing was. */
export const acceptedText = (row) => (row.drafted ? percent(row.accepted, row.drafted) : "–");

/** The share of the prompt that was found in the cache. */
export const cachedText = (row) =>
  row.num_cached_tokens === null ? "–" : percent(row.num_cached_tokens, row.num_prompt_tokens);

/** Why it ended, or where it stands. */
export function outcomeText(row) {
  if (!row.finished_at) return progressText(row) ?? word("request", row.state);
  if (row.finish_reason === "abort") return t("req_stopped_at", { n: number(row.num_output_tokens) });
  if (row.stop_cause) return t(`req_cause_${row.stop_cause}`);
  return row.finish_reason ? word("finish", row.finish_reason) : word("request", row.state);
}

/** "prompt 512 of 2,048", "waits: no free blocks, 2 ahead"; null where the engine has not said. */
export function progressText(row) {
  const progress = row.progress;
  if (!progress) return null;
  if (progress.state === "prefill") {
    return t("req_progress_prefill", { done: number(progress.done), total: number(progress.total) });
  }
  const ahead = number(progress.ahead);
  return progress.cause
    ? t("req_progress_waiting", { cause: t(`req_lack_${progress.cause}`), ahead })
    : t("req_progress_next", { ahead });
}

/** The word of the state chip: a prompt that is being computed is neither in the queue nor answered. */
export function stateText(row) {
  return row.progress?.state === "prefill" ? t("req_state_prefill") : word("request", row.state);
}

/** Reasons of slowness as short sentences, the most costly first. */
export function reasonTexts(reasons) {
  return reasons.map(({ code, seconds: cost, numbers }) => {
    const values = Object.fromEntries(
      Object.entries(numbers).map(([name, value]) => [name, number(value, Number.isInteger(value) ? 0 : 1)]),
    );
    const key = code === "preempted" && numbers.times === 1 ? "once" : code;
    return t(`req_why_${key}`, { ...values, seconds: seconds(cost) });
  });
}
