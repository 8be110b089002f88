// The receipts of engines that have gone: what each gave back of what it held, in what time, and whose wish it was.

import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, clock, number, t, word } from "./i18n.js";
import { live } from "./live.js";
import { NewestRows } from "./newest_rows.js";
import { attempt } from "./toast.js";

const LOOKED_AT = 200; // events
const SHOWN = 5;

/** A list of the newest receipts that keeps itself up to date. */
export function mountReceipts(element) {
  const newest = new NewestRows(SHOWN);
  const isReceipt = (event) => event.kind === "unload" && event.data?.cause;
  const draw = () => fill(element, newest.rows.length ? newest.rows.map(line) : h("li", { class: "pz-empty" }, t("mod_no_receipts")));
  const refresh = async () => {
    await newest.fetch(async () => (await api.events(LOOKED_AT)).filter(isReceipt));
    draw();
  };
  const stops = [
    live.subscribe("events", (event) => {
      if (!isReceipt(event)) return;
      newest.take(event);
      draw();
    }),
    live.onReconnect(() => attempt(refresh)),
  ];
  attempt(refresh);
  return { destroy: () => stops.forEach((stop) => stop()) };
}

function line(event) {
  const { model_id: model, cause, lost_requests: lost } = event.data;
  return h(
    "li",
    { class: "pz-row pz-receipt-line", dataset: { cause } },
    h("span", { class: "pz-grow" }, h("strong", {}, model), ` ${word("mod_cause", cause)}: `, h("span", { class: "pz-figure" }, receiptText(event.data)), lost?.length ? `. ${t("mod_lost_count", { n: lost.length })}` : null),
    h("time", { class: "pz-hint pz-figure" }, clock(event.t)),
  );
}

/** "freed 18.4 of 18.6 GiB in 1.9 s", as far as it was measured. */
export function receiptText({ freed_bytes: freed, held_bytes: held, seconds }) {
  if (freed === null || freed === undefined) return t("mod_not_measured");
  if (seconds === null) return t("mod_freed", { freed: bytes(freed) });
  return t("receipt", { freed: bytes(freed), expected: bytes(held), seconds: number(seconds, 1) });
}
