// Tokens of a text as coloured spans with their ids: a part at a time, so that a huge text does not freeze the page.

import { button, fill, h } from "./dom.js";
import { number, t } from "./i18n.js";
import { spelled } from "./play_answer.js";
import { spelledBytes, tokenTexts } from "./play_stream.js";

const PART = 1500;

/** createSpans({label}) -> {element, show({tokens, token_strs, special}), clear(), ids(shown)} */
export function createSpans({ label }) {
  const line = h("div", { class: "pz-play-tokens pz-play-spans", role: "group", "aria-label": label, tabindex: 0 });
  const more = h("div", {});
  const rows = h("div", { class: "pz-table-wrap" });
  const table = h(
    "details",
    { class: "pz-play-fold", ontoggle: () => table.open && fill(rows, spanTable(entries.slice(0, drawn))) },
    h("summary", {}, t("play_table")),
    rows,
  );
  const parts = h("p", { class: "pz-hint", hidden: true }, t("play_part_of_character"));
  let entries = [];
  let drawn = 0;

  function grow() {
    const part = entries.slice(drawn, drawn + PART);
    line.append(...part.map((entry, at) => span(entry, drawn + at)));
    drawn += part.length;
    const left = entries.length - drawn;
    fill(more, left > 0 && button(t("play_show_more", { n: number(Math.min(PART, left)), left: number(left) }), grow, { kind: "quiet" }));
    if (table.open) fill(rows, spanTable(entries.slice(0, drawn)));
  }

  function show({ tokens, token_strs: strings, special }) {
    const textOf = tokenTexts();
    const specials = new Set(special ?? []);
    entries = tokens.map((id, place) => {
      const bytes = spelledBytes(strings[place]);
      return { id, bytes: bytes.length, text: textOf(bytes), special: specials.has(place) };
    });
    parts.hidden = !entries.some((entry) => entry.text === "");
    drawn = 0;
    fill(line);
    grow();
  }

  return {
    element: h("div", { class: "pz-play-spans-box" }, line, more, parts, table),
    show,
    clear: () => show({ tokens: [], token_strs: [] }),
    ids: (shown) => line.classList.toggle("pz-play-with-ids", shown),
  };
}

function span(entry, place) {
  const kind = entry.special ? "pz-tok pz-tok-special" : "pz-tok";
  const text = entry.text === "" ? "∅" : entry.text;
  const title = t("play_token_title", { place: number(place), id: entry.id, bytes: number(entry.bytes) });
  return h("span", { class: kind, "data-hue": place % 5, "data-id": entry.id, title }, entry.special ? spelled(text) : text);
}

function spanTable(entries) {
  const head = ["#", t("play_token"), t("play_id"), t("play_bytes"), t("play_kind")];
  return h(
    "table",
    { class: "pz-table" },
    h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))), // prettier-ignore
    h(
      "tbody",
      {},
      entries.map((entry, place) =>
        h(
          "tr",
          {},
          h("td", {}, number(place)),
          h("td", {}, h("code", {}, spelled(entry.text))),
          h("td", {}, String(entry.id)),
          h("td", {}, number(entry.bytes)),
          h("td", {}, entry.special ? t("play_special") : t("play_ordinary")),
        ),
      ),
    ),
  );
}
