// The table of requests; on a narrow screen each row is a card. Knows nothing of where rows come from.
// Invariant: a row that stays keeps its nodes, so that focus and selection survive what others do.

import { fill, h, setText } from "./dom.js";
import { clock, rate, seconds, t, timeAgo } from "./i18n.js";
import { addressOf } from "./request_address.js";
import { acceptedText, cachedText, outcomeText, shortId, sourceText, stateText, tokensText } from "./request_words.js";

const COLUMNS = ["request", "model", "state", "queue", "ttft", "itl", "tokens", "rate", "accepted", "cached", "ended"];
const NUMBERS = new Set(["queue", "ttft", "itl", "tokens", "rate", "accepted", "cached"]);

/** {element, draw(rows)}; `open(id)` is called for the request that is chosen. */
export function createTable(open) {
  const body = h("tbody");
  const known = new Map(); // id -> {node, cells, key}
  const element = h(
    "div",
    { class: "pz-table-wrap pz-req-table", onkeydown: moveAmongRows },
    h(
      "table",
      { class: "pz-table", "aria-label": t("req_list") },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          COLUMNS.map((name) =>
            h(
              "th",
              { scope: "col", class: NUMBERS.has(name) ? "pz-num" : null, title: t(`req_col_${name}_definition`) },
              t(`req_col_${name}`),
            ),
          ),
        ),
      ),
      body,
    ),
  );

  function draw(rows) {
    const shown = new Set(rows.map((row) => row.id));
    for (const [id, entry] of known) {
      if (shown.has(id)) continue;
      entry.node.remove();
      known.delete(id);
    }
    let place = body.firstChild;
    for (const row of rows) {
      const entry = known.get(row.id) ?? createRow(row, open);
      known.set(row.id, entry);
      entry.update(row);
      if (entry.node === place) place = place.nextSibling;
      else body.insertBefore(entry.node, place);
    }
  }
  return { element, draw };
}

function createRow(first, open) {
  const id = first.id;
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(id);
  };
  const age = h("time", { class: "pz-hint" });
  const link = h("a", { class: "pz-req-link", href: addressOf({ id }), onclick: follow, title: id }, shortId(id));
  const cells = COLUMNS.map((name) =>
    h("td", { class: NUMBERS.has(name) ? "pz-num" : null, "data-label": t(`req_col_${name}`), dataset: { col: name } }),
  );
  cells[0].append(link, age);
  const node = h("tr", { dataset: { request: id } }, cells);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !getSelection().toString()) open(id);
  });
  let key = "";
  function update(row) {
    setText(age, `${timeAgo(row.created_at)} · ${sourceText(row.source)}`);
    age.title = clock(row.created_at);
    const news = JSON.stringify(row);
    if (news === key) return;
    key = news;
    node.dataset.state = row.state;
    COLUMNS.forEach((name, i) => i && fill(cells[i], CELLS[name](row)));
  }
  return { node, update };
}

const CELLS = {
  model: (row) => h("span", { class: "pz-req-model", title: row.model_id }, row.model_id),
  state: (row) => [stateChip(row), row.slow ? slowMark() : null],
  queue: (row) => seconds(row.queue_s),
  ttft: (row) => seconds(row.ttft_s),
  itl: (row) => seconds(row.itl_p95_s),
  tokens: tokensText,
  rate: (row) => rate(row.tokens_per_s),
  accepted: acceptedText,
  cached: cachedText,
  ended: (row) => h("span", { class: row.state === "failed" ? "pz-bad" : null, title: row.error }, outcomeText(row)),
};

/** The dot repeats what the word says. */
export const stateChip = (row) => h("span", { class: "pz-req-state", dataset: { state: row.state } }, stateText(row));

const slowMark = () => h("span", { class: "pz-req-slow", title: t("req_slow_definition") }, t("req_slow"));

/** Up and down go from request to request. */
function moveAmongRows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = [...event.currentTarget.querySelectorAll(".pz-req-link")];
  const at = links.indexOf(event.target);
  if (!step || at < 0) return;
  event.preventDefault();
  links[at + step]?.focus();
}
