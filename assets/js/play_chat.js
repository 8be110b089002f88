// Raw chat: the body of /v1/chat/completions row by row, and what comes back, with nothing in between.

import { fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { playEngine } from "./play_engine.js";
import { createJsonField } from "./play_json_field.js";
import { createMessages } from "./play_messages.js";
import { taken } from "./play_replay.js";
import { createRun, replayNotice } from "./play_run.js";
import { createSampling } from "./play_sampling.js";

const PATH = "/v1/chat/completions";
const GIVEN = { max_tokens: 256 };
const CHOICES = ["auto", "none", "required"];
const TOOL = '[{"type": "function", "function": {"name": "…", "parameters": {"type": "object"}}}]';

export function mount(element) {
  let run = null;
  const notice = h("div", { class: "pz-play-notice" });
  const changed = () => run?.changed();
  const messages = createMessages({ onChange: changed });
  const tools = createJsonField({ label: "tools", rows: 4, placeholder: TOOL, onChange: changed });
  const choice = h(
    "select",
    { class: "pz-field", onchange: changed },
    ["", ...CHOICES].map((value) => h("option", { value }, value || t("default"))),
  );
  const variables = createJsonField({
    label: "chat_template_kwargs",
    rows: 2,
    placeholder: '{"enable_thinking": false}',
    onChange: changed,
  });
  const format = createJsonField({
    label: "response_format",
    rows: 2,
    placeholder: '{"type": "json_object"}',
    onChange: changed,
  });
  const sampling = createSampling({ given: GIVEN, without: ["logprobs"], limit: "chat", onChange: changed });
  const prepare = () => {
    const asked = messages.read();
    const { body, problems } = sampling.read();
    const extra = {};
    for (const [name, field] of Object.entries({ tools, chat_template_kwargs: variables, response_format: format })) {
      const { value, error } = field.read();
      if (error) problems.push([name, error]);
      else if (value !== undefined) extra[name] = value;
    }
    if (choice.value) extra.tool_choice = choice.value;
    const wanted = { logprobs: true, stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    const whole = { model: playEngine()?.model_id, messages: asked.messages, ...extra, ...body, ...wanted };
    return { body: whole, problems: [...asked.problems, ...problems] };
  };
  run = createRun({ path: PATH, prepare, verb: t("send"), empty: t("play_chat_empty") });
  messages.fill([{ role: "user", content: "" }]);
  fill(
    element,
    h(
      "div",
      { class: "pz-play-columns" },
      h(
        "div",
        { class: "pz-card pz-play-form" },
        notice,
        messages.element,
        h(
          "details",
          { class: "pz-play-group" },
          h("summary", {}, t("play_group_chat")),
          h(
            "div",
            { class: "pz-play-stack" },
            tools.element,
            h("label", { class: "pz-label" }, h("code", {}, "tool_choice"), choice),
            format.element,
            variables.element,
          ),
        ),
        sampling.element,
      ),
      h("div", { class: "pz-card pz-play-out" }, run.element),
    ),
  );
  const take = () => {
    const found = taken();
    if (!found) return;
    messages.fill(found.messages);
    sampling.fill(found.fields);
    fill(notice, replayNotice(found));
  };
  take();
  addEventListener("pizarra:playground", take);
  return {
    destroy() {
      removeEventListener("pizarra:playground", take);
      sampling.destroy();
      run.destroy();
    },
  };
}
