// Overview's two lists: the last requests, each leading to its own page, and the last events with their receipts.

import { fill, h } from "./dom.js";
import { clock, number, rate, seconds, t, timeAgo, word } from "./i18n.js";
import { receiptText } from "./receipts.js";

export function showRequests(element, rows) {
  const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  fill(element, rows.length ? requestTable(rows) : h("p", { class: "pz-empty" }, t("no_requests_yet")));
  if (focused) element.querySelector(`a[href="${focused}"]`)?.focus({ preventScroll: true });
}

function requestTable(rows) {
  const heads = ["when", "model", "tokens", "tokens_per_s", "ttft", "ended"];
  const cells = (row) => [
    h(
      "a",
      { href: `/requests?id=${encodeURIComponent(row.id)}`, title: t("ov_open_request") },
      timeAgo(row.created_at),
    ),
    row.model_id,
    t("in_out", { input: number(row.num_prompt_tokens), output: number(row.num_output_tokens) }),
    rate(row.tokens_per_s),
    seconds(row.ttft_s),
    outcome(row),
  ];
  return h(
    "table",
    { class: "pz-table" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((name) => h("th", { scope: "col" }, t(name))),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          {},
          cells(row).map((cell, i) => h("td", { "data-label": t(heads[i]) }, cell)),
        ),
      ),
    ),
  );
}

function outcome(row) {
  if (row.state === "failed") return h("span", { class: "pz-bad", title: row.error }, word("finish", "error"));
  return row.finish_reason ? word("finish", row.finish_reason) : word("request", row.state);
}

export function showEvents(element, events) {
  const rows = events.map((event) =>
    h(
      "li",
      { "data-severity": event.severity },
      h("time", { class: "pz-figure", title: clock(event.t) }, timeAgo(event.t)),
      h("span", {}, event.message, receipt(event)),
    ),
  );
  fill(element, rows.length ? rows : h("li", { class: "pz-empty" }, t("no_events_yet")));
}

/** What an unload gave back, where the message does not say so itself. */
function receipt({ kind, data, message }) {
  if (kind !== "unload" || typeof data?.freed_bytes !== "number") return null;
  const cause = data.cause ? word("ovcause", data.cause) : null;
  const freed = message.includes("freed") ? null : receiptText(data);
  const said = [freed, cause].filter(Boolean).join(" · ");
  return said ? h("small", { class: "pz-hint pz-receipt" }, said) : null;
}
