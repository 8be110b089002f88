// One answer as its tokens: each can be picked by click or arrow keys, coloured by its probability, read in a table.
// Owns the spans and which is picked. Invariant: a span's text is what its token's bytes completed, set as text.

import { fill, h } from "./dom.js";
import { number, t } from "./i18n.js";
import { tokenTexts } from "./play_stream.js";

const BANDS = [0.01, 0.1, 0.3, 0.6, 0.9]; // of probability; the band of a token is how many of them it reaches
const TABLE_ROWS = 2000;

export const spelled = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";

/** A probability in percent, with as many digits as mean something. */
export function share(probability) {
  const percent = 100 * probability;
  if (percent > 0 && percent < 0.0005) return `< ${number(0.001, 3)} %`;
  return `${number(percent, percent >= 9.95 ? 1 : percent >= 0.995 ? 2 : 3)} %`;
}

/** createAnswer({label, onPick}) -> {element, push(tokens), finish(), tokens, pick(index), text()}; a token is {id, logprob, bytes}. */
export function createAnswer({ label, onPick }) {
  const tokens = [];
  const textOf = tokenTexts();
  let picked = -1;
  const line = h("div", {
    class: "pz-play-tokens",
    tabindex: 0,
    role: "group",
    "aria-label": label,
    onclick: ({ target }) => pick(indexOf(target)),
    onkeydown: (event) => {
      const next = { ArrowRight: picked + 1, ArrowLeft: picked - 1, Home: 0, End: tokens.length }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      pick(Math.max(0, Math.min(next, tokens.length)));
    },
  });
  const end = h("span", { class: "pz-tok pz-tok-end", "data-index": 0, title: t("play_end_place"), hidden: true }, "■");
  line.append(end);
  const rows = h("div", { class: "pz-table-wrap" });
  const table = h(
    "details",
    { class: "pz-play-fold", ontoggle: () => table.open && fill(rows, tokenTable(tokens)) },
    h("summary", {}, t("play_table")),
    rows,
  );

  function indexOf(target) {
    const span = target.closest("[data-index]");
    return span ? Number(span.dataset.index) : -1;
  }

  function pick(index) {
    if (index < 0) return;
    line.querySelector("[aria-current]")?.removeAttribute("aria-current");
    picked = index;
    const span = line.children[index];
    span.setAttribute("aria-current", "true");
    span.scrollIntoView({ block: "nearest" });
    onPick(index);
  }

  return {
    element: h("div", { class: "pz-play-answer" }, line, table),
    tokens,
    pick,
    text: () => tokens.map((token) => token.text).join(""),
    push(added) {
      for (const token of added) {
        const text = textOf(token.bytes);
        const index = tokens.push({ ...token, text }) - 1;
        end.before(tokenSpan(tokens[index], index));
      }
      end.dataset.index = tokens.length;
    },
    finish() {
      end.hidden = false;
      if (table.open) fill(rows, tokenTable(tokens));
    },
  };
}

function tokenSpan(token, index) {
  const probability = token.logprob === null ? null : Math.exp(token.logprob);
  const band = probability === null ? "" : BANDS.filter((edge) => probability >= edge).length;
  const shown = token.text === "" ? spelled(token.text) : token.text;
  const title = probability === null ? `#${token.id}` : `#${token.id} · ${share(probability)}`;
  return h("span", { class: "pz-tok", "data-index": index, "data-band": band, title }, shown);
}

function tokenTable(tokens) {
  const head = ["#", t("play_token"), t("play_id"), t("play_logprob"), t("play_probability")];
  const shown = tokens.slice(0, TABLE_ROWS);
  const rows = shown.map((token, index) =>
    h(
      "tr",
      {},
      h("td", {}, number(index)),
      h("td", {}, h("code", {}, spelled(token.text))),
      h("td", {}, String(token.id)),
      h("td", {}, token.logprob === null ? "–" : number(token.logprob, 4)),
      h("td", {}, token.logprob === null ? "–" : share(Math.exp(token.logprob))),
    ),
  );
  return [
    h(
      "table",
      { class: "pz-table" },
      h("caption", { class: "pz-hint" }, t("play_table_definition")),
      h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))), // prettier-ignore
      h("tbody", {}, rows),
    ),
    tokens.length > TABLE_ROWS && h("p", { class: "pz-hint" }, t("play_table_cut", { n: number(TABLE_ROWS) })),
  ];
}

/** What the colours mean, in words and with the colours. */
export function colourLegend() {
  const edges = [0, ...BANDS, 1];
  return h(
    "div",
    { class: "pz-play-legend", title: t("play_probability_definition") },
    h("span", {}, t("play_legend")),
    edges.slice(0, -1).map((edge, band) => {
      const text = `${number(100 * edge)}–${number(100 * edges[band + 1])} %`;
      return h("span", { class: "pz-tok", "data-band": band }, text);
    }),
  );
}
