// One line on a loaded engine's speculation: who drafts, what that gains, what is off, how the self-test ended.

import { h, setText } from "./dom.js";
import { number, t, word } from "./i18n.js";
import { openSelftestDialog } from "./selftest_dialog.js";
import { stateWord } from "./verdict_words.js";

/** {element, update(engine)}: brought up to date in place, so that nothing that is open beside it closes. */
export function speculationLine() {
  const drafts = h("span", { class: "pz-grow" });
  let shown = null;
  const verdict = h("button", { type: "button", class: "pz-verdict", onclick: () => openSelftestDialog(shown) });
  const element = h("div", { class: "pz-hint pz-row pz-speculation" }, drafts, verdict);
  function update(engine) {
    const { speculation, selftest } = engine;
    shown = engine;
    setText(drafts, [whoDrafts(speculation), ...(speculation?.proposers ?? []).map(notOn)].filter(Boolean).join(" · "));
    const state = selftest?.state ?? "never";
    verdict.hidden = !speculation?.proposers.length;
    verdict.dataset.state = state;
    setText(verdict, t("selftest_line", { state: word("verdict", state) }));
  }
  return { element, update };
}

function whoDrafts(speculation) {
  if (!speculation?.proposers.length) return t("speculation_off");
  if (!speculation.enabled) return t("speculation_disabled");
  const { state, gain } = speculation.verdict;
  const measured = gain === null ? t("speculation_gain_unknown") : t("speculation_gain", { gain: number(gain, 2) });
  const pays = gain === null || state === "failed" ? "" : ` (${stateWord(state)})`;
  return `${t("speculation_on", { proposer: speculation.proposer })}, ${measured}${pays}`;
}

const notOn = ({ name, state, reason }) => (state === "on" ? null : t(`proposer_state_${state}`, { name, reason }));
