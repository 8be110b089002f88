// The tokenizer: a text as the tokens a model sees. Counted by the server while one types, so that a huge paste freezes
// nothing here.

import { fill, h, setText } from "./dom.js";
import { number, t } from "./i18n.js";
import { debounced, playApi } from "./play_api.js";
import { onPlayEngine, playEngine } from "./play_engine.js";
import { noModel, problem } from "./play_run.js";
import { createSpans } from "./play_spans.js";

const WAIT_MS = 250;
const LARGE = 200_000; // characters: longer texts wait longer for the typing to end
const LARGE_WAIT_MS = 1200;

export function mount(element) {
  const input = h("textarea", {
    class: "pz-field pz-play-mono pz-play-prompt",
    rows: 8,
    placeholder: t("play_tokenizer_placeholder"),
    spellcheck: "false",
    oninput: () => soon(),
  });
  const special = h("input", { type: "checkbox", checked: true, onchange: () => soon() });
  const ids = h("input", { type: "checkbox", onchange: () => spans.ids(ids.checked) });
  const spans = createSpans({ label: t("play_tokens") });
  const fault = h("div", { class: "pz-play-fault" });
  const counts = {
    tokens: h("dd", { class: "pz-figure" }, "–"),
    characters: h("dd", { class: "pz-figure" }, "–"),
    bytes: h("dd", { class: "pz-figure" }, "–"),
    ratio: h("dd", { class: "pz-figure" }, "–"),
    room: h("dd", { class: "pz-figure" }, "–"),
  };
  const facts = h(
    "dl",
    { class: "pz-play-facts", "aria-live": "polite" },
    Object.entries(counts).map(([name, value]) =>
      h("div", { title: t(`play_count_${name}_definition`) }, h("dt", {}, t(`play_count_${name}`)), value),
    ),
  );
  const wait = debounced(WAIT_MS);
  const waitLonger = debounced(LARGE_WAIT_MS);
  let asking = null;

  const soon = () => (input.value.length > LARGE ? waitLonger(count) : wait(count));

  async function count() {
    asking?.abort();
    const engine = playEngine();
    if (!engine) return fill(fault, noModel());
    const mine = (asking = new AbortController());
    const text = input.value;
    const body = { model: engine.model_id, prompt: text, return_token_strs: true, add_special_tokens: special.checked };
    try {
      const found = await playApi.tokenize(body, mine.signal);
      if (mine.signal.aborted) return;
      fill(fault);
      show(text, found);
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(fault, problem(error.message));
    }
  }

  function show(text, found) {
    const size = new TextEncoder().encode(text).length;
    setText(counts.tokens, number(found.count));
    setText(counts.characters, number([...text].length));
    setText(counts.bytes, number(size));
    setText(counts.ratio, found.count ? number(size / found.count, 2) : "–");
    setText(counts.room, number(found.max_model_len - found.count));
    counts.room.classList.toggle("pz-bad", found.count >= found.max_model_len);
    spans.show(found);
  }

  fill(
    element,
    h(
      "div",
      { class: "pz-play-columns" },
      h(
        "div",
        { class: "pz-card pz-play-form" },
        h("label", { class: "pz-label" }, t("play_text"), input),
        h("label", { class: "pz-check", title: t("play_hint_add_special_tokens") }, special, h("code", {}, "add_special_tokens")),
        h("label", { class: "pz-check" }, ids, h("span", {}, t("play_show_ids"))),
      ),
      h("div", { class: "pz-card pz-play-out" }, fault, facts, spans.element),
    ),
  );
  const forget = onPlayEngine(() => count());
  return {
    destroy() {
      forget();
      asking?.abort();
    },
  };
}
