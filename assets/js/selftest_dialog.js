// The self-test of an engine: what it asks, how the last one ended, and the button that runs it.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { clock, number, t, word } from "./i18n.js";
import { attempt } from "./toast.js";

const SIGN = { passed: "check", reported: "info", inconclusive: "info", failed: "warning" };
const SHOWN_DIGITS = 12; // of a hash

export async function openSelftestDialog(engine) {
  const result = h("div", { class: "pz-stack", "aria-live": "polite" });
  const run = button(t("selftest_run"), start, { kind: "primary", iconName: "play" });
  const dialog = openDialog({
    title: t("selftest_of", { model: engine.model_id }),
    body: [h("p", {}, t("selftest_text")), result],
    actions: [button(t("close"), () => dialog.close()), run],
    wide: true,
  });
  async function start() {
    run.disabled = true;
    if (await attempt(() => api.startSelftest(engine.id))) dialog.close();
    run.disabled = false;
  }
  try {
    const found = await api.selftest(engine.id);
    run.disabled = found.state === "running";
    fill(result, report(found));
  } catch (error) {
    fill(result, problem(error.message || t("server_unreachable")));
  }
}

export const problem = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

/** How the last one ended, part by part, and of which pair. */
export function report({ state, stale, result }) {
  if (!result) return h("p", { class: "pz-hint" }, word("verdict", state));
  const when = [clock(result.finished_at), stale ? t("selftest_stale") : null].filter(Boolean).join(" · ");
  const ended = t("selftest_result", { proposer: result.proposer, state: word("verdict", result.state) });
  const hash = (text) => text.slice(0, SHOWN_DIGITS) || "–";
  return [
    h("p", { class: "pz-row" }, h("strong", { class: "pz-grow" }, ended), h("time", { class: "pz-figure pz-hint" }, when)),
    h("ul", { class: "pz-findings" }, result.parts.map(part)),
    h(
      "code",
      { class: "pz-model-id" },
      t("selftest_pair", { model: hash(result.model_hash), drafter: hash(result.drafter_hash) }),
    ),
  ];
}

function part(found) {
  const first = found.first_difference;
  return h(
    "li",
    { class: "pz-finding", "data-state": found.state === "failed" ? "bad" : found.state === "passed" ? "ok" : "note" },
    icon(SIGN[found.state] ?? "info"),
    h(
      "div",
      {},
      h("p", {}, `${word("stage", found.name)}: ${word("verdict", found.state)}`),
      h("p", { class: "pz-hint" }, figures(found)),
      first ? h("p", { class: "pz-hint" }, difference(first)) : null,
    ),
  );
}

function figures(found) {
  const drafts = { drafted: number(found.drafted), accepted: number(found.accepted) };
  if (found.name !== "distribution")
    return t("selftest_parity", { ...drafts, different: number(found.different), compared: number(found.compared) });
  const smallest = Math.min(...found.tests.map((test) => test.p_value));
  return t("selftest_sampled", {
    ...drafts,
    tests: found.tests.length,
    samples: number(found.num_samples),
    p: smallest < 0.001 ? smallest.toExponential(1) : number(smallest, 2),
  });
}

const difference = ({ position, prompt, plain, speculative }) =>
  t("selftest_difference", { position, prompt, plain: shown(plain), speculative: shown(speculative) });

const shown = (token) => (token ? `${JSON.stringify(token.text)} (${token.id})` : "–");
