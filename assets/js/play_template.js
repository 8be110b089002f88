// Template preview: what a chat's messages become before the model sees them, with the special tokens and all ids.

import { fill, h, setText } from "./dom.js";
import { number, t } from "./i18n.js";
import { debounced, playApi } from "./play_api.js";
import { onPlayEngine, playEngine } from "./play_engine.js";
import { createJsonField } from "./play_json_field.js";
import { createMessages } from "./play_messages.js";
import { noModel, problem } from "./play_run.js";
import { createSpans } from "./play_spans.js";

const WAIT_MS = 300;

export function mount(element) {
  const wait = debounced(WAIT_MS);
  const soon = () => wait(render);
  const messages = createMessages({ onChange: soon });
  const tools = createJsonField({ label: "tools", rows: 3, onChange: soon });
  const variables = createJsonField({
    label: "chat_template_kwargs",
    rows: 2,
    placeholder: '{"enable_thinking": false}',
    onChange: soon,
  });
  const open = h("input", { type: "checkbox", checked: true, onchange: soon });
  const goOn = h("input", { type: "checkbox", onchange: soon });
  const ids = h("input", { type: "checkbox", onchange: () => spans.ids(ids.checked) });
  const spans = createSpans({ label: t("play_rendered") });
  const fault = h("div", { class: "pz-play-fault" });
  const said = h("p", { class: "pz-hint pz-figure", role: "status" });
  let asking = null;

  async function render() {
    asking?.abort();
    const engine = playEngine();
    if (!engine) return fill(fault, noModel());
    const asked = messages.read();
    const fields = { tools: tools.read(), chat_template_kwargs: variables.read() };
    const wrong = [...asked.problems, ...Object.entries(fields).filter(([, f]) => f.error).map(([name, f]) => [name, f.error])]; // prettier-ignore
    if (wrong.length) return fill(fault, wrong.map(([name, text]) => problem(`${name}: ${text}`)));
    const mine = (asking = new AbortController());
    const body = {
      model: engine.model_id,
      messages: asked.messages,
      tools: fields.tools.value,
      chat_template_kwargs: fields.chat_template_kwargs.value,
      add_generation_prompt: open.checked && !goOn.checked,
      continue_final_message: goOn.checked,
      return_token_strs: true,
    };
    try {
      const found = await playApi.tokenize(body, mine.signal);
      if (mine.signal.aborted) return;
      fill(fault);
      const counts = { n: number(found.count), special: number(found.special.length), most: number(found.max_model_len) };
      setText(said, t("play_template_counts", counts));
      spans.show(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(said, "");
      spans.clear();
      fill(fault, problem(error.message));
    }
  }

  fill(
    element,
    h(
      "div",
      { class: "pz-play-columns" },
      h(
        "div",
        { class: "pz-card pz-play-form" },
        messages.element,
        tools.element,
        variables.element,
        h("label", { class: "pz-check", title: t("play_hint_add_generation_prompt") }, open, h("code", {}, "add_generation_prompt")),
        h("label", { class: "pz-check", title: t("play_hint_continue_final_message") }, goOn, h("code", {}, "continue_final_message")),
      ),
      h(
        "div",
        { class: "pz-card pz-play-out" },
        h("h2", {}, t("play_rendered")),
        fault,
        said,
        h("label", { class: "pz-check" }, ids, h("span", {}, t("play_show_ids"))),
        spans.element,
        h("p", { class: "pz-hint" }, t("play_template_definition")),
      ),
    ),
  );
  messages.fill([
    { role: "system", content: t("play_example_system") },
    { role: "user", content: t("play_example_user") },
  ]);
  const forget = onPlayEngine(() => render());
  return {
    destroy() {
      forget();
      asking?.abort();
    },
  };
}
