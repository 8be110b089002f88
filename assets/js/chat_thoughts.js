// The thoughts that come before an answer: open while they come, folded once the answer begins.
// Invariant: what the reader opened or folded stays so.

import { h, icon, setText } from "./dom.js";
import { seconds, t } from "./i18n.js";
import { createMarkdownView } from "./markdown.js";

const NEAR_END_PX = 40;

/** {element, paint(message)}. */
export function createThoughtsView() {
  const label = h("span");
  const summary = h("summary", {}, icon("right"), label);
  const text = h("div", { class: "pz-thoughts-text" });
  const element = h("details", { class: "pz-thoughts", hidden: true }, summary, text);
  const markdown = createMarkdownView(text);
  let shown = "";
  let chosen = false; // by the reader
  summary.addEventListener("click", () => (chosen = true));

  function paint(message) {
    const thoughts = message.reasoning_content;
    element.hidden = !thoughts;
    if (!thoughts) return;
    const thinking = message.state === "streaming" && !message.content;
    element.classList.toggle("pz-thoughts-live", thinking);
    setText(label, labelOf(message, thinking));
    if (!chosen) element.open = !message.content;
    if (thoughts === shown) return;
    const follow = text.scrollHeight - text.scrollTop - text.clientHeight < NEAR_END_PX;
    shown = thoughts;
    markdown(thoughts);
    if (thinking && follow) text.scrollTop = text.scrollHeight;
  }

  return { element, paint };
}

function labelOf(message, thinking) {
  if (thinking) return t("thinking");
  const time = message.stats?.reasoning_s;
  return typeof time === "number" ? t("thought_for", { time: seconds(time) }) : t("thoughts");
}
