// The verdict by batch and context as a table, each row with its steps by the number of drafts. Knows no engine.

import { h } from "./dom.js";
import { number, t } from "./i18n.js";
import { ageText, decimal, milliseconds, reasonText, spanText, stateWord, times } from "./verdict_words.js";

const HEADS = ["requests", "context", "state", "speedup", "accepted", "even", "plain", "draft", "verify", "steps"];

/** A table that names its columns twice, once for narrow screens. */
export function dataTable(heads, rows, caption) {
  const head = heads.map(({ text, definition }) => h("th", { scope: "col", title: definition ?? null }, text));
  const body = rows.map((cells) =>
    h(
      "tr",
      {},
      cells.map((cell, i) => h("td", { "data-label": heads[i].text }, cell)),
    ),
  );
  return h(
    "div",
    { class: "pz-table-wrap" },
    h(
      "table",
      { class: "pz-table pz-spec-table" },
      h("caption", { class: "pz-spec-caption" }, caption),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, body),
    ),
  );
}

export function bucketTable(verdict) {
  if (!verdict.buckets.length) return h("p", { class: "pz-empty" }, t("spec_no_buckets"));
  const heads = HEADS.map((name) => ({ text: t(`spec_col_${name}`), definition: t(`spec_col_${name}_definition`) }));
  return dataTable(heads, verdict.buckets.map((bucket) => cells(bucket, verdict.now)), t("spec_by_bucket"));
}

function cells(bucket, now) {
  const interval = bucket.low === null ? null : `${number(bucket.low, 2)}–${number(bucket.high, 2)}`;
  return [
    spanText(bucket.requests_from, bucket.requests_to),
    spanText(bucket.context_from, bucket.context_to),
    h("span", { class: "pz-spec-word", "data-state": bucket.state, title: reasonText(bucket) || null }, stateWord(bucket.state)),
    h("span", {}, times(bucket.speedup), interval && h("span", { class: "pz-hint" }, ` ${interval}`)),
    decimal(bucket.accepted_per_step),
    decimal(bucket.break_even),
    h(
      "span",
      {},
      milliseconds(bucket.plain_ms),
      h("span", { class: "pz-hint" }, ` ${t("spec_plain_note", { n: number(bucket.plain_steps), age: ageText(bucket.plain_at, now) })}`),
    ),
    milliseconds(bucket.draft_ms),
    milliseconds(bucket.verify_ms),
    number(bucket.steps),
  ];
}

/** Steps by the number of drafts of a request, of all buckets. */
export function draftsTable(verdict) {
  const rows = verdict.buckets.flatMap((bucket) =>
    bucket.by_drafts.map((one) => [
      spanText(bucket.requests_from, bucket.requests_to),
      spanText(bucket.context_from, bucket.context_to),
      number(one.num_drafts),
      milliseconds(one.verify_ms),
      decimal(one.accepted_per_step),
      number(one.steps),
    ]),
  );
  if (!rows.length) return null;
  const heads = ["requests", "context", "drafts", "verify", "accepted", "steps"].map((name) => ({
    text: t(`spec_col_${name}`),
    definition: t(`spec_col_${name}_definition`),
  }));
  return dataTable(heads, rows, t("spec_by_drafts"));
}
