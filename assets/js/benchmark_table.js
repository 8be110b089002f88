// The figures of a benchmark: medians with their spread, each with its definition.

import { h } from "./dom.js";
import { number, percent, seconds, t } from "./i18n.js";

const NAMES = { ttft_s: "mod_bench_ttft", prefill_tokens_per_s: "mod_bench_prefill", decode_tokens_per_s: "mod_bench_decode" };

const value = (row, figure) =>
  figure === null ? "–" : row.name === "ttft_s" ? latency(figure) : `${number(figure, figure < 100 ? 1 : 0)} tok/s`;

const latency = (figure) => (figure < 0.1 ? `${number(1000 * figure, 1)} ms` : seconds(figure));

export function benchmarkTable(result) {
  const columns = [t("mod_bench_figure"), t("mod_bench_batch"), t("mod_bench_drafts"), t("mod_bench_median"), t("mod_bench_spread")];
  return h(
    "div",
    { class: "pz-stack pz-bench" },
    h(
      "div",
      { class: "pz-table-wrap" },
      h(
        "table",
        { class: "pz-table" },
        h("thead", {}, h("tr", {}, columns.map((name) => h("th", {}, name)))),
        h(
          "tbody",
          {},
          result.rows.map((row) =>
            h(
              "tr",
              {},
              h("td", { title: t(`${NAMES[row.name]}_definition`) }, t(NAMES[row.name])),
              h("td", {}, number(row.batch)),
              h("td", {}, drafts(row, result)),
              h("td", {}, h("strong", {}, value(row, row.median))),
              h("td", {}, row.n ? `${value(row, row.low)} – ${value(row, row.high)}` : t("mod_bench_too_few")),
            ),
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "pz-hint" },
      t("mod_bench_how", { prompt: number(result.prompt_tokens), output: number(result.output_tokens), n: number(result.repeats) }),
      result.disturbed ? ` ${t("mod_bench_disturbed", { n: number(result.disturbed) })}` : null,
      result.skipped.map((each) => ` ${t("mod_bench_skipped", { batch: number(each.batch), reason: each.reason })}`),
    ),
  );
}

const drafts = (row, result) =>
  row.drafts
    ? row.acceptance === null
      ? t("mod_bench_none_drafted", { name: result.proposer })
      : t("mod_bench_accepted", { name: result.proposer, share: percent(row.acceptance, 1) })
    : t("mod_bench_plain");
