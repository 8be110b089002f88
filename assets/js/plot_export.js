// What a plot draws, as a file: a table with its units and definitions in front. Pure text; knows no page.

import { h } from "./dom.js";

/** A cell that holds a text. One that a spreadsheet would take for a formula begins with an apostrophe. */
function quoted(text) {
  const inert = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}

/** A line of words. It is not quoted, so that it begins with #; what follows a comma in it must not be a formula. */
const remark = (line) => `# ${line.replace(/[\r\n]+/g, " ").replace(/,(?=\s*[=+\-@])/g, ";")}`;
const iso = (epoch) => new Date(epoch * 1000).toISOString();

/**
 * {title, definition, unit, notes: [text], lines: [{name, definition}], times, columns, bands} as CSV: lines that begin
 * with # say what it is, then one row a step. What was not recorded is empty.
 */
export function csvText({ title, definition, unit, notes = [], lines, times, columns, bands = null }) {
  const head = [title, definition, ...lines.map((line) => `${line.name}: ${line.definition ?? definition}`), ...notes];
  const suffix = unit ? ` [${unit}]` : "";
  const names = lines.flatMap(({ name }, i) => [
    `${name}${suffix}`,
    ...(bands?.[i] ? [`${name} min${suffix}`, `${name} max${suffix}`] : []),
  ]);
  const rows = times.map((t, at) => [
    iso(t),
    ...lines.flatMap((_, i) => [columns[i][at], ...(bands?.[i] ? [bands[i][0][at], bands[i][1][at]] : [])]),
  ]);
  return [
    ...head.map(remark),
    ["time (UTC)", ...names].map(quoted).join(","),
    ...rows.map((row) => row.map((value) => value ?? "").join(",")),
    "",
  ].join("\n");
}

/** Hand a text to the browser as a file. */
export function saveText(filename, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = h("a", { href: url, download: filename });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** "pizarra-memory-2026-11-30T20-15-00": names of files have no colons. */
export const fileName = (name, epoch) => `pizarra-${name}-${iso(epoch).slice(0, 19).replaceAll(":", "-")}`;
