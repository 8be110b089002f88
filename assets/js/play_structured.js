// Structured output: a grammar that is judged while one types, an answer held to it, and that answer checked again here.

import { button, fill, h, icon } from "./dom.js";
import { number, t } from "./i18n.js";
import { debounced, playApi } from "./play_api.js";
import { onPlayEngine, playEngine } from "./play_engine.js";
import { createRun } from "./play_run.js";
import { createSampling } from "./play_sampling.js";
import { checkAnswer } from "./play_verdict.js";

const WAIT_MS = 350;
const KINDS = {
  json_schema: {
    field: "guided_json",
    example: JSON.stringify(
      {
        type: "object",
        properties: {
          colour: { type: "string", maxLength: 12 },
          red: { type: "integer", minimum: 0, maximum: 255 },
        },
        required: ["colour", "red"],
        additionalProperties: false,
      },
      null,
      2,
    ),
  },
  regex: { field: "guided_regex", example: "(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}" },
  ebnf: {
    field: "guided_grammar",
    example: 'root ::= greeting ", " name "."\ngreeting ::= "Hello" | "Good day"\nname ::= [A-Z] [a-z]{2,8}\n',
  },
  choice: { field: "guided_choice", example: '["red", "green", "blue"]' },
};

export function mount(element) {
  let run = null;
  let kind = "json_schema";
  const typed = Object.fromEntries(Object.entries(KINDS).map(([name, { example }]) => [name, example]));
  const grammar = h("textarea", {
    class: "pz-field pz-play-mono pz-play-prompt",
    rows: 11,
    spellcheck: "false",
    id: "pz-play-grammar",
    oninput: () => {
      typed[kind] = grammar.value;
      soon();
      run.changed();
    },
  });
  const verdict = h("div", { class: "pz-play-verdict", role: "status" });
  const segments = Object.keys(KINDS).map((name) =>
    h("button", { type: "button", class: "pz-button pz-segment", "data-kind": name, onclick: () => choose(name) }, t(`play_kind_${name}`)),
  );
  const field = h("code", {});
  const prompt = h("textarea", { class: "pz-field", rows: 3, id: "pz-play-ask", oninput: () => run.changed() });
  prompt.value = t("play_structured_example");
  const asChat = h("input", { type: "checkbox", checked: true, onchange: () => run.changed() });
  const sampling = createSampling({
    given: { max_tokens: 200 },
    without: ["logprobs", "n"],
    limit: "chat",
    open: [],
    onChange: () => run?.changed(),
  });
  const outcome = h("div", { class: "pz-play-outcome", role: "status" });
  const wait = debounced(WAIT_MS);
  const soon = () => wait(judge);
  let asking = null;

  async function judge() {
    asking?.abort();
    const engine = playEngine();
    if (!engine) return fill(verdict, h("span", { class: "pz-hint" }, t("play_no_verdict")));
    const mine = (asking = new AbortController());
    try {
      const said = await playApi.grammar(engine.id, { kind, text: grammar.value }, mine.signal);
      if (!mine.signal.aborted) show(said);
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(verdict, h("span", { class: "pz-bad" }, error.message));
    }
  }

  function show(said) {
    grammar.setAttribute("aria-invalid", String(!said.usable));
    if (said.usable) return fill(verdict, h("span", { class: "pz-ok" }, icon("check"), " ", t("play_usable")));
    const place = said.line ? t("play_at_line", { line: number(said.line), column: number(said.column) }) : said.path;
    const go = said.line && button(t("play_go_there"), () => put(said.line, said.column), { kind: "quiet" });
    return fill(
      verdict,
      h("span", { class: "pz-bad" }, icon("warning"), " ", place && h("strong", {}, place, ": "), said.message),
      go,
    );
  }

  function put(line, column) {
    const lines = grammar.value.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + column - 1;
    grammar.focus();
    grammar.setSelectionRange(start, Math.min(start + 1, grammar.value.length));
  }

  function choose(name) {
    kind = name;
    grammar.value = typed[name];
    field.textContent = KINDS[name].field;
    for (const each of segments) each.setAttribute("aria-pressed", String(each.dataset.kind === name));
    judge();
    run.changed();
  }

  function prepare() {
    const { body, problems } = sampling.read();
    let wish = grammar.value;
    if (kind === "choice" || kind === "json_schema") {
      try {
        wish = JSON.parse(wish);
      } catch (error) {
        problems.push([KINDS[kind].field, error.message]);
      }
    }
    const asked = asChat.checked
      ? { messages: [{ role: "user", content: prompt.value }], logprobs: true }
      : { prompt: prompt.value, logprobs: 0 };
    const wanted = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    return { body: { model: playEngine()?.model_id, ...asked, [KINDS[kind].field]: wish, ...body, ...wanted }, problems };
  }

  run = createRun({
    path: () => (asChat.checked ? "/v1/chat/completions" : "/v1/completions"),
    prepare,
    verb: t("play_ask"),
    empty: t("play_structured_empty"),
    after: outcome,
    onStart: () => fill(outcome),
    onEnd: (whole, one) => {
      const [choice] = whole.choices;
      if (choice) fill(outcome, checkAnswer(one.body, choice.text ?? choice.message?.content ?? "", choice.finish_reason));
    },
  });
  fill(
    element,
    h(
      "div",
      { class: "pz-play-columns" },
      h(
        "div",
        { class: "pz-card pz-play-form" },
        h("div", { class: "pz-segments pz-play-kinds", role: "group", "aria-label": t("play_kind") }, segments),
        h("label", { class: "pz-label" }, field, grammar),
        verdict,
        h("label", { class: "pz-label" }, t("prompt"), prompt),
        h("label", { class: "pz-check", title: t("play_as_chat_hint") }, asChat, h("span", {}, t("play_as_chat"))),
        sampling.element,
      ),
      h("div", { class: "pz-card pz-play-out" }, run.element),
    ),
  );
  choose(kind);
  const forget = onPlayEngine(() => judge());
  return {
    destroy() {
      forget();
      sampling.destroy();
      run.destroy();
    },
  };
}
