// The proposers of an engine as a table: their counts since the load, and who is off and why.

import { h } from "./dom.js";
import { number, percent, t, word } from "./i18n.js";
import { decimal, milliseconds } from "./verdict_words.js";
import { dataTable } from "./verdict_table.js";

const HEADS = ["proposer", "proposer_state", "drafts", "drafted", "accepted_count", "rate", "length", "draft_each"];

export function proposersTable(proposers) {
  if (!proposers.length) return h("p", { class: "pz-empty" }, t("speculation_off"));
  const heads = HEADS.map((name) => ({ text: t(`spec_col_${name}`), definition: t(`spec_col_${name}_definition`) }));
  return dataTable(heads, proposers.map(cells), t("spec_proposers"));
}

function cells(each) {
  return [
    h("code", {}, each.name),
    h(
      "span",
      { class: "pz-spec-word", "data-state": each.state === "on" ? "on" : "costs", title: each.reason || null },
      word("spec_proposer", each.state),
      each.state === "on" ? null : h("span", { class: "pz-hint" }, ` ${t("spec_proposer_why")}`),
    ),
    number(each.drafts),
    number(each.drafted),
    number(each.accepted),
    each.drafted ? percent(each.accepted, each.drafted) : "–",
    decimal(each.mean_acceptance_length),
    milliseconds(each.drafts ? (1e3 * each.draft_s) / each.drafts : null),
  ];
}
