// The figures of one request and of its drafts, each with its definition. Knows nothing of the course or of texts.

import { h } from "./dom.js";
import { clock, number, percent, rate, seconds, t } from "./i18n.js";
import { table } from "./request_waterfall.js";
import { cachedText, outcomeText, sourceText, tokensText } from "./request_words.js";

export function figures(request) {
  const { timeline: course } = request;
  const decode = course?.decode;
  const others = decode?.others_mean ?? null;
  return facts([
    ["received", clock(request.created_at)],
    ["source", sourceText(request.source)],
    ["tokens", tokensText(request)],
    ["cached", cachedText(request)],
    ["queue", seconds(request.queue_s)],
    ["ttft", seconds(request.ttft_s)],
    ["itl", seconds(request.itl_p95_s)],
    ["rate", request.tokens_per_s === null ? "–" : t("req_per_second", { rate: rate(request.tokens_per_s) })],
    ["total", seconds(request.e2e_s)],
    ["steps", decode ? number(decode.steps) : "–"],
    ["others", others === null ? "–" : company(others, decode.others_max)],
    ["preemptions", number(request.num_preemptions)],
    ["seed", request.seed_text ?? "–"],
    ["ended", outcomeText(request)],
  ]);
}

const company = (mean, most) => t("req_others", { mean: number(mean, mean % 1 ? 1 : 0), most: number(most) });

function facts(known) {
  return h(
    "dl",
    { class: "pz-req-facts" },
    known.map(([name, value]) =>
      h(
        "div",
        { title: t(`req_fact_${name}_definition`) },
        h("dt", {}, t(`req_fact_${name}`)),
        h("dd", { class: "pz-figure", dataset: { fact: name } }, value),
      ),
    ),
  );
}

/** What the drafts brought; where there were none, why. */
export function speculation(request) {
  if (!request.drafts) return h("p", { class: "pz-empty" }, t(request.proposer ? "req_no_drafts" : "req_plain"));
  const { drafts, drafted, accepted } = request;
  const perDraft = t("req_per_draft", { n: number(1 + accepted / drafts, 2) });
  return [
    facts([
      ["proposer", request.proposer ?? "–"],
      ["drafts", number(drafts)],
      ["drafted", number(drafted)],
      ["accepted", number(accepted)],
      ["acceptance", percent(accepted, drafted)],
      ["mean_length", perDraft],
      ["draft_time", seconds(request.draft_s)],
      ["verify_time", seconds(request.verify_s)],
    ]),
    h("h3", {}, t("req_positions")),
    table(
      ["position", "drafted", "accepted", "conditional", "unconditional"],
      request.drafted_per_position.map((count, i) => positionRow(request, count, i)),
    ),
    h("p", { class: "pz-hint" }, t("req_positions_definition")),
  ];
}

function positionRow({ drafted_per_position: drafted, accepted_per_position: accepted, drafts }, count, i) {
  const right = accepted[i] ?? 0;
  const reached = i ? Math.min(accepted[i - 1] ?? 0, drafted[i]) : count;
  return [number(i + 1), number(count), number(right), percent(right, reached), percent(right, drafts)];
}
