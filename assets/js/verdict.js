// The verdict pane: does speculation pay? One dial, the answer in words, advice, and the table that it rests on.
// Every figure is the server's own; nothing is computed here but ages.

import { chosenEngine, onChosenEngine } from "./chosen_engine.js";
import { fill, h, icon, setText } from "./dom.js";
import { bytes, clock, number, t } from "./i18n.js";
import { createDial } from "./verdict_dial.js";
import { watchVerdict } from "./verdict_feed.js";
import { bucketTable, draftsTable } from "./verdict_table.js";
import { adviceTexts, ageText, milliseconds, reasonText, sentence, shownState, stateWord, times } from "./verdict_words.js";

const TABLE_AGE_S = 10; // how exact ages in tables are

/** The pane of the chosen engine. compact: for the Overview, with a link to the whole. */
export function mountVerdict(element, { compact = false } = {}) {
  const view = createVerdict({ compact });
  fill(element, view.element);
  const feed = watchVerdict(chosenEngine, view.update);
  const leave = onChosenEngine(feed.refresh);
  return {
    destroy() {
      feed.stop();
      leave();
      element.replaceChildren();
    },
  };
}

/** {element, update({verdict, error})}, for those who have the verdict already. */
export function createVerdict({ compact = false } = {}) {
  const dial = createDial();
  const chip = h("span", { class: "pz-chip pz-spec-state", role: "status" });
  const answer = h("p", { class: "pz-spec-answer" });
  const reason = h("p", { class: "pz-hint" });
  const advice = h("ul", { class: "pz-spec-advice" });
  const facts = h("p", { class: "pz-hint pz-spec-facts" });
  const problem = h("p", { class: "pz-problem", hidden: true }, icon("warning"), h("span", {}));
  const whole = h("div", { class: "pz-spec-whole" });
  const more = compact ? h("a", { class: "pz-spec-more", href: "/monitor?tab=speculation" }, t("spec_more")) : null;
  const element = h(
    "section",
    { class: `pz-card pz-spec-verdict${compact ? " pz-spec-compact" : ""}`, "data-state": "loading" },
    h(
      "div",
      { class: "pz-row" },
      h("h2", { class: "pz-grow", title: t("spec_verdict_definition") }, t("spec_verdict")),
      chip,
    ),
    problem,
    h(
      "div",
      { class: "pz-spec-body" },
      dial.element,
      h("div", { class: "pz-spec-words" }, answer, reason, advice, facts, more),
    ),
    whole,
  );
  let tables = "";

  function update({ verdict, error }) {
    problem.hidden = error === null;
    if (error !== null) {
      element.dataset.state = "error";
      setText(problem.lastChild, error.status === 0 ? t("server_unreachable") : error.message);
      return;
    }
    const state = shownState(verdict);
    element.dataset.state = chip.dataset.state = state;
    setText(chip, stateWord(state));
    dial.update(verdict?.accepted_per_step ?? null, verdict?.break_even ?? null, times(verdict?.speedup ?? null));
    dial.element.classList.toggle("pz-dial-unsure", verdict?.state === "not_enough_data");
    setText(answer, verdict === null ? t("spec_sentence_none") : sentence(verdict));
    setText(reason, verdict === null ? "" : reasonText(verdict));
    fill(advice, verdict === null ? null : adviceTexts(verdict).map((text) => h("li", {}, text)));
    setText(facts, verdict === null ? "" : factsText(verdict));
    if (!compact) showTables(verdict);
  }

  /** A table that is open or being read is not replaced by one that says the same. */
  function showTables(verdict) {
    const told = JSON.stringify(verdict && [verdict.buckets, verdict.memory, Math.round(verdict.now / TABLE_AGE_S)]);
    if (told === tables) return;
    tables = told;
    const open = whole.querySelector("details")?.open ?? false;
    if (verdict === null) return void fill(whole);
    const drafts = draftsTable(verdict);
    fill(
      whole,
      bucketTable(verdict),
      drafts && h("details", { class: "pz-spec-details", open }, h("summary", {}, t("spec_by_drafts")), drafts),
      h("p", { class: "pz-hint" }, memoryText(verdict.memory)),
    );
  }

  return { element, update };
}

function factsText(verdict) {
  if (verdict.verify_ms === null) return "";
  const { plain_ms, draft_ms, verify_ms, plain_at, plain_steps, now, steps } = verdict;
  const shown = {
    plain: milliseconds(plain_ms),
    draft: milliseconds(draft_ms),
    verify: milliseconds(verify_ms),
    steps: number(steps),
    n: number(plain_steps),
  };
  const baseline =
    plain_at === null
      ? t("spec_no_baseline")
      : t("spec_baseline", { ...shown, age: ageText(plain_at, now), at: clock(plain_at) });
  return `${t("spec_times", shown)} ${baseline}`;
}

function memoryText(memory) {
  if (!memory.bytes) return t("spec_memory_none");
  return t("spec_memory", {
    bytes: bytes(memory.bytes),
    weights: bytes(memory.weights_bytes),
    kv: bytes(memory.kv_bytes),
    workspace: bytes(memory.workspace_bytes),
    tokens: number(memory.kv_tokens_lost),
    pool: number(memory.kv_tokens),
  });
}
