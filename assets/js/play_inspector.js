// One token under the glass: the likeliest tokens at its place, its rank and surprise, and what each step of the chain did.
// Owns the pane and the newest question; the figures are the engine's own (POST /api/engines/{id}/inspect).

import { fill, h, icon, iconButton, setText } from "./dom.js";
import { number, t } from "./i18n.js";
import { share, spelled } from "./play_answer.js";
import { debounced, playApi } from "./play_api.js";

const TOP = 10;
const WAIT_MS = 120; // arrow keys run over tokens

/** createInspector({move}) -> {element, show(place), clear()}; a place is {engine, request, ids, index, sample, seed}. */
export function createInspector({ move }) {
  const title = h("h2", {}, t("play_inspector"));
  const said = h("p", { class: "pz-hint", role: "status" }, t("play_inspector_empty"));
  const body = h("div", { class: "pz-play-inspected" });
  const steps = [
    iconButton("left", t("play_previous_token"), () => move(-1), { disabled: true }),
    iconButton("right", t("play_next_token"), () => move(1), { disabled: true }),
  ];
  const element = h(
    "section",
    { class: "pz-play-inspector", "aria-label": t("play_inspector") },
    h("div", { class: "pz-row" }, h("div", { class: "pz-grow" }, title), ...steps),
    said,
    body,
  );
  const later = debounced(WAIT_MS);
  let asking = null;

  async function ask({ engine, request, ids, index, sample }) {
    asking?.abort();
    const mine = (asking = new AbortController());
    const question = { request, answer_token_ids: ids, positions: [index], sample_index: sample, top: TOP };
    try {
      const found = await playApi.inspect(engine.id, question, mine.signal);
      if (mine.signal.aborted) return;
      setText(said, `${t(`play_exact_${found.exactness}`)} ${t("play_exact_counts")}`);
      said.title = found.exactness_reason;
      fill(body, view(found.places[0], found));
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(said, "");
      fill(body, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, error.message)));
    }
  }

  return {
    element,
    clear() {
      asking?.abort();
      setText(title, t("play_inspector"));
      setText(said, t("play_inspector_empty"));
      fill(body);
      for (const step of steps) step.disabled = true;
    },
    show(place) {
      const of = { n: number(place.index + 1), total: number(place.ids.length) };
      setText(title, place.index < place.ids.length ? t("play_token_of", of) : t("play_end_place"));
      steps[0].disabled = place.index === 0;
      steps[1].disabled = place.index >= place.ids.length;
      later(() => ask(place));
    },
  };
}

function view(place, found) {
  const token = place.token ?? place.drawn;
  const other = found.seeded && place.token && place.drawn.token_id !== place.token.token_id;
  return [
    h(
      "p",
      { class: "pz-play-which" },
      h("code", { class: "pz-play-big" }, spelled(token.text)),
      h("span", { class: "pz-hint" }, `#${token.token_id}`),
      !place.token && h("span", { class: "pz-hint" }, t("play_end_drawn")),
    ),
    other && h("p", { class: "pz-warn" }, t("play_other_drawn", { token: spelled(place.drawn.text) })),
    figures(place),
    topTable(place, token),
    chainTable(place),
  ];
}

function figures(place) {
  const facts = [
    [t("play_probability"), share(Math.exp(place.logprob)), t("play_probability_definition")],
    [t("play_logprob"), number(place.logprob, 4), t("play_logprob_definition")],
    [t("play_rank"), number(place.rank), t("play_rank_definition")],
    [t("play_entropy"), t("play_nats", { n: number(Math.max(place.entropy, 0), 3) }), t("play_entropy_definition")],
    [t("play_final_entropy"), t("play_nats", { n: number(Math.max(place.final_entropy, 0), 3) }), t("play_final_entropy_definition")],
  ];
  return h(
    "dl",
    { class: "pz-play-facts" },
    facts.map(([name, value, title]) => h("div", { title }, h("dt", {}, name), h("dd", { class: "pz-figure" }, value))),
  );
}

function topTable(place, token) {
  const most = Math.exp(place.top[0].logprob);
  const rows = place.top.map((each, index) => {
    const probability = Math.exp(each.logprob);
    const here = each.token_id === token.token_id;
    return h(
      "tr",
      { class: here && "pz-play-here", "aria-current": here && "true" },
      h("td", {}, number(index + 1)),
      h("td", { class: "pz-play-cell" }, h("code", { title: `#${each.token_id}` }, spelled(each.text))),
      h(
        "td",
        { class: "pz-play-bar-cell" },
        h("span", { class: "pz-play-bar", "aria-hidden": "true", style: { "--share": `${(100 * probability) / most}%` } }),
      ),
      h("td", {}, share(probability)),
      h("td", {}, number(each.logprob, 3)),
      h(
        "td",
        { class: each.final_logprob === null && "pz-muted" },
        each.final_logprob === null ? t("play_cannot_come") : share(Math.exp(each.final_logprob)),
      ),
    );
  });
  const head = [t("play_rank"), t("play_token"), "", t("play_probability"), t("play_logprob"), t("play_after_chain")];
  return h(
    "div",
    { class: "pz-table-wrap" },
    h("h3", {}, t("play_top_caption")),
    h(
      "table",
      { class: "pz-table pz-play-top", "aria-label": t("play_top_caption") },
      h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))), // prettier-ignore
      h("tbody", {}, rows),
    ),
  );
}

function chainTable(place) {
  const acted = place.stages.filter((stage) => stage.asked || stage.num_removed || stage.num_changed);
  const idle = place.stages.filter((stage) => !acted.includes(stage));
  const head = [t("play_step"), t("play_left"), t("play_removed"), t("play_changed"), t("play_token_after")];
  const none = idle.map((stage) => t(`play_stage_${stage.name}`)).join(", ");
  return [
    acted.length > 0 &&
      h(
        "div",
        { class: "pz-table-wrap" },
        h("h3", {}, t("play_chain_caption")),
        h(
          "table",
          { class: "pz-table pz-play-chain", "aria-label": t("play_chain_caption") },
          h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))), // prettier-ignore
          h("tbody", {}, acted.flatMap(stageRows)),
        ),
      ),
    h("p", { class: "pz-hint" }, acted.length ? t("play_not_asked", { steps: none }) : t("play_no_chain")),
  ];
}

function stageRows(stage) {
  const removed = stage.num_removed
    ? t("play_removed_share", { n: number(stage.num_removed), share: share(stage.removed_probability) })
    : "–";
  const own =
    stage.logprob === null ? t("play_cannot_come") : `${share(Math.exp(stage.logprob))} · ${t("play_nth", { n: number(stage.rank) })}`;
  const moved = stage.moved.map((each) =>
    h(
      "span",
      { class: `pz-play-moved${each.after === null ? " pz-play-gone" : ""}` },
      h("code", { title: `#${each.token_id}` }, spelled(each.text)),
      ` ${share(Math.exp(each.before))} → ${each.after === null ? t("play_gone") : share(Math.exp(each.after))}`,
    ),
  );
  return [
    h(
      "tr",
      { "data-stage": stage.name },
      h("th", { scope: "row" }, t(`play_stage_${stage.name}`)),
      h("td", {}, number(stage.num_left)),
      h("td", {}, removed),
      h("td", {}, stage.num_changed ? number(stage.num_changed) : "–"),
      h("td", {}, own),
    ),
    moved.length > 0 &&
      h(
        "tr",
        { class: "pz-play-moved-row" },
        h(
          "td",
          { colspan: 5 },
          h("details", { class: "pz-play-fold" }, h("summary", {}, t("play_moved")), h("div", { class: "pz-play-moves" }, moved)),
        ),
      ),
  ];
}
