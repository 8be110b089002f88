// The playground's sheet: the prompt dim, what the model went on to write bright, and what it cost.
// Fed by the value of its gr.HTML: texts and numbers, set as text.

import { fill, h, icon, setText } from "./dom.js";
import { number, rate, seconds, t, word } from "./i18n.js";

export function mount(element, { props, watch }) {
  const prompt = h("span", { class: "pz-sheet-prompt" });
  const text = h("span", { class: "pz-sheet-text", "data-testid": "completion" });
  const sheet = h(
    "div",
    { class: "pz-sheet", tabindex: 0, "aria-label": t("completion"), "aria-live": "off" },
    prompt,
    text,
  );
  const status = h("div", { class: "pz-sheet-status pz-figure", role: "status" });
  fill(element, h("h2", {}, t("completion")), sheet, status);
  let stopped = false;
  const show = () => {
    const value = props.value;
    sheet.classList.toggle("pz-sheet-empty", !value);
    if (!value) {
      setText(text, t("completion_empty"));
      return;
    }
    const follow = sheet.scrollHeight - sheet.scrollTop - sheet.clientHeight < 60;
    setText(prompt, value.prompt);
    setText(text, value.text);
    if (follow) sheet.scrollTop = sheet.scrollHeight;
    const running = value.state === "running";
    fill(status, running && stopped ? h("span", { class: "pz-warn" }, t("completion_stopped")) : statusParts(value));
  };
  watch("value", show);
  // Stop closes the stream: no last value comes to say so, and one that was under way may still come.
  // Heard on the document, since Gradio may mount its buttons after this pane.
  document.addEventListener("click", ({ target }) => {
    if (target.closest("#pz-complete")) stopped = false;
    else if (target.closest("#pz-stop")) {
      stopped = true;
      show();
    }
  });
  show();
}

function statusParts({ state, model, finish_reason: finish, usage, seed, error, elapsed_s: elapsed }) {
  if (state === "no_model") {
    return h(
      "p",
      { class: "pz-problem" },
      icon("info"),
      h("span", {}, t("no_model_loaded"), " ", h("a", { href: "/models" }, t("see_models"))),
    );
  }
  if (state === "bad_seed")
    return h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, t("seed_not_a_number")));
  if (error) return h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, error));
  if (state === "running") return [h("span", { class: "pz-spinner" }), h("span", {}, t("completing"))];
  const output = usage.completion_tokens;
  const parts = [seconds(elapsed)];
  if (output !== undefined) {
    parts.unshift(t("tokens_in_out", { input: number(usage.prompt_tokens), output: number(output) }));
    parts.push(t("n_tokens_per_s", { rate: rate(output / elapsed) }));
  }
  if (finish) parts.push(word("finish", finish));
  if (seed !== null && seed !== undefined) parts.push(`${t("seed")} ${seed}`);
  if (model) parts.push(model);
  return parts.map((part) => h("span", {}, part));
}
