// The table twin of memory by part: each part now, its share, what it means, and that they add up.

import { h } from "./dom.js";
import { bytes, percent, t } from "./i18n.js";
import { isAlarming, PARTS } from "./memory_parts.js";

/** found: see `partsAt`; null where nothing was recorded. */
export function memoryTable(found, device) {
  if (!found) return h("p", { class: "pz-empty" }, t("no_samples"));
  const heads = ["mon_part", "mon_now", "mon_share", "mon_meaning"];
  return h(
    "table",
    { class: "pz-table pz-memory-table" },
    h("caption", {}, t(device === "gpu" ? "mon_memory_gpu_caption" : "mon_memory_host_caption")),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((key) => h("th", { scope: "col" }, t(key))),
      ),
    ),
    h(
      "tbody",
      {},
      PARTS.filter(([name]) => device === "host" || !["app", "runtime"].includes(name)).map(([name, hue]) =>
        partRow(name, hue, found),
      ),
    ),
    h("tfoot", {}, sums(found)),
  );
}

function partRow(name, hue, found) {
  const value = found.parts[name];
  const alarming = name === "unattributed" && isAlarming(found);
  const unknown = value === null || (!found.known && found.enginesHere && found.process > 0 && name === "weights");
  return h(
    "tr",
    { class: alarming ? "pz-bad" : null, dataset: { part: name } },
    h(
      "th",
      { scope: "row" },
      h("span", {
        class: `pz-swatch pz-part-${name}`,
        style: { background: name === "free" ? "transparent" : `var(--pz-${alarming ? "error" : hue})` },
      }),
      t(`line_part_${name}`),
    ),
    h("td", { class: "pz-figure" }, unknown ? t("mon_unknown") : bytes(value)),
    h("td", { class: "pz-figure" }, unknown ? "–" : percent(value, found.total)),
    h("td", { class: "pz-hint" }, meaning(name, found, alarming)),
  );
}

function meaning(name, found, alarming) {
  if (name !== "unattributed") return t(`mon_means_${name}`);
  if (found.parts.unattributed === null) return t("mon_pids_hidden");
  const text = t("mon_means_unattributed", { process: bytes(found.process), share: share(found) });
  return alarming ? `${text} ${t("mon_unattributed_alarm")}` : text;
}

const share = ({ parts, process }) => (process ? percent(parts.unattributed, process) : "–");

function sums(found) {
  const row = (key, value, text = "") =>
    h(
      "tr",
      { dataset: { sum: key } },
      h("th", { scope: "row" }, t(`mon_${key}`)),
      h("td", { class: "pz-figure" }, signed(value)),
      h("td", { class: "pz-figure" }, value === 0 ? "–" : percent(Math.abs(value), found.total)),
      h("td", { class: "pz-hint" }, text),
    );
  return [
    row("sum", found.sum),
    row("total", found.total),
    row("difference", found.difference, t("mon_difference_means")),
    found.untouched > 0 ? row("untouched", found.untouched, t("mon_untouched_means")) : null,
  ];
}

const signed = (value) => (value < 0 ? `−${bytes(-value)}` : bytes(value));
