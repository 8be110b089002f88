// The result of a race in words, as a scale, and as tables. Reads a job's result; owns no state but the replay's.

import { fill, h, icon } from "./dom.js";
import { number, rate, seconds, t } from "./i18n.js";
import { createReplay, WAYS } from "./race_replay.js";

const RESAMPLES = 2000; // of the server's interval (app/race_statistics.py)
const SIGN = { identical: "check", near_tie: "info", may_differ: "info", mismatch: "warning" };

/** {element, destroy()} of a race's result. */
export function raceResult(result) {
  const replay = result.replay ? createReplay(result.replay) : null;
  const element = h(
    "div",
    { class: "pz-race-result" },
    verdict(result),
    identity(result),
    replay ? replay.element : h("p", { class: "pz-hint" }, t("race_no_replay")),
    figures(result),
    runsTable(result),
    notes(result),
  );
  return { element, destroy: () => replay?.destroy() };
}

const times = (value) => number(value, 2);

function verdict({ speedup, repeats, ways }) {
  const drafted = ways.speculative.drafted > 0;
  const { value, low, high } = speedup;
  return h(
    "section",
    { class: "pz-race-verdict", "data-verdict": drafted ? speedup.verdict : "not_enough_data" },
    h("h2", {}, t(`race_verdict_${speedup.verdict}`, { value: times(value) })),
    drafted ? null : h("p", { class: "pz-warn" }, t("race_nothing_drafted")),
    low === null
      ? null
      : h(
          "p",
          { class: "pz-hint pz-figure", title: t("race_interval_hint", { n: number(RESAMPLES) }) },
          t("race_interval", { low: times(low), high: times(high), n: repeats }),
        ),
    low === null ? null : scale(value, low, high),
  );
}

/** A line from below 1 to above the interval, the interval on it, and 1 marked: there nothing is gained or lost. */
function scale(value, low, high) {
  const from = Math.min(0.8, low - 0.1);
  const to = Math.max(1.4, high + 0.15);
  const at = (x) => `${(100 * (x - from)) / (to - from)}%`;
  const width = `${(100 * (high - low)) / (to - from)}%`;
  const ticks = [];
  const gap = to - from > 3 ? 1 : 0.5;
  for (let tick = Math.ceil(from / gap) * gap; tick <= to; tick += gap) ticks.push(tick);
  return h(
    "div",
    {
      class: "pz-race-scale",
      role: "img",
      "aria-label": t("race_scale", { value: times(value), low: times(low), high: times(high) }),
    },
    h("span", { class: "pz-race-one", style: { left: at(1) } }),
    h("span", { class: "pz-race-interval", style: { left: at(low), width } }),
    h("span", { class: "pz-race-value", style: { left: at(value) } }),
    ticks.map((tick) =>
      h("span", { class: "pz-race-tick pz-figure", style: { left: at(tick) } }, `${number(tick, 1)}×`),
    ),
  );
}

function identity({ identity: found, exactness, temperature, rule }) {
  const first = found.first_difference;
  const values = { n: found.compared, different: found.different, position: first?.position };
  const lines = [h("p", {}, t(`race_identity_${found.verdict}`, values))];
  if (first) {
    const margin = (value) => (value === null ? t("race_unknown") : number(value, 4));
    const token = (each) => (each ? `${JSON.stringify(each.text)} (${each.id})` : "–");
    lines.push(
      h(
        "p",
        { class: "pz-hint" },
        t("race_difference", {
          after: first.after,
          plain: token(first.plain),
          speculative: token(first.speculative),
          plain_margin: margin(first.plain_margin),
          speculative_margin: margin(first.speculative_margin),
        }),
      ),
    );
    if (exactness === "bits") lines.push(h("p", { class: "pz-hint" }, t("race_bits_note")));
  } else if (temperature > 0 && (exactness === "distribution" || rule === "rejection"))
    lines.push(h("p", { class: "pz-hint" }, t("race_sampled_note")));
  if (found.plain_repeats_differ) lines.push(h("p", { class: "pz-warn" }, t("race_plain_differs")));
  return h(
    "div",
    { class: "pz-race-identity", "data-verdict": found.verdict },
    icon(SIGN[found.verdict]),
    h("div", {}, lines),
  );
}

function figures({ ways }) {
  const range = ({ low, high }, shown) =>
    h("span", { class: "pz-hint" }, t("race_range", { low: shown(low), high: shown(high) }));
  const cell = (spread, shown) => h("td", {}, h("strong", {}, shown(spread.median)), " ", range(spread, shown));
  const rows = [
    ["race_median_speed", "race_speed_hint", (way) => cell(ways[way].tokens_per_s, rate)],
    ["race_ttft", "race_ttft_hint", (way) => cell(ways[way].ttft_s, seconds)],
    ["race_drafted", "board_sum_accepted_hint", (way) => h("td", {}, drafts(ways[way]))],
    ["race_length", "race_length_hint", (way) => h("td", {}, number(ways[way].mean_acceptance_length, 2))],
  ];
  return h(
    "div",
    { class: "pz-table-wrap" },
    h(
      "table",
      { class: "pz-table pz-race-figures" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("td", {}),
          WAYS.map((way) => h("th", { scope: "col" }, t(`race_way_${way}`))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(([key, hint, of]) => h("tr", {}, h("th", { scope: "row", title: t(hint) }, t(key)), WAYS.map(of))),
      ),
    ),
  );
}

const drafts = ({ drafted, accepted }) => (drafted ? `${number(accepted)} / ${number(drafted)}` : "–");

function runsTable({ runs }) {
  const columns = ["round", "way", "tokens", "ttft", "decode", "speed"];
  const cells = (run) => [
    run.round + 1,
    t(`race_way_${run.way}`),
    number(run.num_tokens),
    seconds(run.ttft_s),
    seconds(run.decode_s),
    rate(run.tokens_per_s),
  ];
  return h(
    "details",
    {},
    h("summary", {}, t("race_table")),
    h(
      "div",
      { class: "pz-table-wrap" },
      h(
        "table",
        { class: "pz-table" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            columns.map((name) => h("th", { scope: "col" }, t(`race_col_${name}`))),
          ),
        ),
        h(
          "tbody",
          {},
          runs.map((run) =>
            h(
              "tr",
              {},
              cells(run).map((value) => h("td", {}, value)),
            ),
          ),
        ),
      ),
    ),
  );
}

function notes(result) {
  const found = [
    result.model_id,
    t("race_settings", {
      proposer: result.proposer,
      rule: result.rule,
      temperature: number(result.temperature, 2),
      seed: result.seed,
      max: number(result.max_tokens),
      prompt: number(result.num_prompt_tokens),
    }),
  ];
  if (result.waited) found.push(t("race_waited"));
  if (result.disturbed) found.push(t("race_disturbed", { n: result.disturbed }));
  if (result.other_jobs) found.push(t("race_other_jobs", { n: result.other_jobs }));
  return fill(
    h("ul", { class: "pz-race-notes" }),
    found.map((line) => h("li", { class: "pz-hint" }, line)),
  );
}
