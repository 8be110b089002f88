// One step on the board: its number, its tokens, who drafted, what it took. Owns the row's node.

import { h } from "./dom.js";
import { number, t } from "./i18n.js";
import { tokenNode, tokensOf } from "./chalkboard_tokens.js";

const ms = (value) => number(value, value < 10 ? 1 : 0);

/** entry: a step of a trace. step: its number on the board. isFirst: it computed the prompt, too. place: of its first token. */
export function stepRow(entry, { step, isFirst, place }) {
  const tokens = tokensOf(entry);
  const drafted = entry.drafted.length;
  const times = drafted
    ? t("board_times", { draft: ms(entry.draft_ms), verify: ms(entry.verify_ms) })
    : t("board_time_plain", { ms: ms(entry.verify_ms) });
  const node = h(
    "li",
    { class: "pz-chalk-row", "data-step": step, "data-plain": drafted ? null : "" },
    h("span", { class: "pz-chalk-step pz-figure" }, step),
    h(
      "span",
      { class: "pz-chalk-tokens" },
      tokens.map((found, index) => tokenNode(found, place + index)),
    ),
    h("span", { class: "pz-chalk-who" }, drafted ? entry.proposer : isFirst ? t("board_first") : t("board_plain")),
    h(
      "span",
      {
        class: "pz-chalk-times",
        title: t(isFirst ? "board_times_first_hint" : "board_times_hint", { n: entry.num_requests }),
      },
      h("span", { class: "pz-figure" }, times),
      h(
        "span",
        {
          class: "pz-chalk-bar",
          "aria-hidden": "true",
          style: { "--draft": entry.draft_ms, "--verify": entry.verify_ms },
        },
        h("i", {}),
        h("i", {}),
      ),
    ),
    h(
      "span",
      { class: "pz-chalk-k pz-figure", title: t("board_k_of_hint") },
      drafted ? `${entry.num_accepted}/${drafted}` : "–",
    ),
  );
  return { node, tokens };
}
