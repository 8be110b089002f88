// Running one request of /v1 and showing what comes: the answers' tokens, figures, why it ended, the token inspector, and
// request and response as JSON. Owns the run; what is asked comes from the tab. Invariant: Stop ends it in the engine.

import { button, fill, h, icon } from "./dom.js";
import { number, rate, seconds, t, word } from "./i18n.js";
import { colourLegend, createAnswer } from "./play_answer.js";
import { playApi } from "./play_api.js";
import { onPlayEngine, playEngine } from "./play_engine.js";
import { createInspector } from "./play_inspector.js";
import { codePanel, curlOf } from "./play_json.js";
import { chunksOf } from "./play_stream.js";
import { joined } from "./play_chunks.js";

const noop = () => {};
const PATIENCE_MS = 2500; // for an engine that was told to stop

/**
 * createRun({path, prepare, verb, empty, ...}) -> {element, run(), changed(), destroy()}; prepare() -> {body, problems}.
 * after: a node for what a tab says of the answer, which it fills in onEnd(whole, run) and clears in onStart().
 */
export function createRun({ path, prepare, verb, empty, after, before = () => "", onEnd = noop, onStart = noop }) {
  const pathOf = () => (typeof path === "function" ? path() : path);
  const go = button(verb, () => run(), { kind: "primary", iconName: "play", class: "pz-button pz-primary pz-play-go" });
  const halt = button(t("stop"), () => stop(), { iconName: "stop", disabled: true, class: "pz-button pz-secondary pz-play-stop" }); // prettier-ignore
  const colour = h("input", { type: "checkbox", onchange: () => recolour() });
  const legend = colourLegend();
  const sheet = h("div", { class: "pz-play-sheet" }, h("p", { class: "pz-empty" }, empty));
  const status = h("div", { class: "pz-play-status pz-figure", role: "status" });
  const answers = new Map();
  let current = null; // {engine, body, id, seed, abort, started, firstAt, result}
  let picked = { sample: 0, index: -1 };
  const inspector = createInspector({ move: (by) => answers.get(picked.sample)?.pick(picked.index + by) });
  const request = codePanel(t("play_request"), [[t("play_copy_curl"), () => curlOf(pathOf(), prepare().body)]]);
  const response = codePanel(t("play_response"));
  request.show(() => JSON.stringify(prepare().body, null, 2));
  const element = h(
    "div",
    { class: "pz-play-run" },
    h(
      "div",
      { class: "pz-actions" },
      go,
      halt,
      h("label", { class: "pz-check pz-play-colour" }, colour, h("span", {}, t("play_colour"))),
    ),
    legend,
    sheet,
    status,
    after,
    inspector.element,
    request.element,
    response.element,
  );
  const forget = onPlayEngine(() => ready());
  document.addEventListener("keydown", keys);
  recolour();

  /** Of the tab that is looked at. */
  function keys(event) {
    if (element.offsetParent === null || event.defaultPrevented) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    else if (event.key === "Escape") stop();
  }

  function ready() {
    go.disabled = current?.running === true || playEngine() === null;
    halt.disabled = current?.running !== true;
    if (playEngine() === null && !current) fill(status, noModel());
    else if (!current) fill(status);
  }

  function recolour() {
    legend.hidden = !colour.checked;
    sheet.classList.toggle("pz-play-coloured", colour.checked);
  }

  async function run() {
    const engine = playEngine();
    if (!engine || current?.running) return;
    const { body, problems } = prepare();
    if (problems.length) {
      fill(status, problems.map(([name, message]) => problem(`${name}: ${message}`)));
      return;
    }
    const now = performance.now();
    current = { engine, body, abort: new AbortController(), started: now, running: true, result: joined() };
    answers.clear();
    inspector.clear();
    onStart();
    picked = { sample: 0, index: -1 };
    fill(sheet, h("span", { class: "pz-play-before" }, before()));
    fill(status, h("span", { class: "pz-spinner" }), h("span", {}, t("completing")));
    ready();
    const mine = current;
    try {
      for await (const chunk of chunksOf(pathOf(), body, mine.abort.signal)) take(chunk, mine);
    } catch (error) {
      mine.error = error.status === 0 ? t("server_unreachable") : error.message;
    }
    mine.running = false;
    clearTimeout(mine.patience);
    finish(mine);
  }

  function take(chunk, mine) {
    for (const [sample, tokens] of mine.result.take(chunk)) {
      mine.firstAt ??= performance.now();
      answerOf(sample).push(tokens);
    }
  }

  function answerOf(sample) {
    if (!answers.has(sample)) {
      const label = t("play_answer_n", { n: number(sample + 1) });
      const answer = createAnswer({ label, onPick: (index) => look(sample, index) });
      answers.set(sample, answer);
      if ((current.body.n ?? 1) > 1) sheet.append(h("p", { class: "pz-hint" }, label));
      sheet.append(answer.element);
    }
    return answers.get(sample);
  }

  function look(sample, index) {
    picked = { sample, index };
    for (const [other, answer] of answers) {
      if (other !== sample) answer.element.querySelector("[aria-current]")?.removeAttribute("aria-current");
    }
    const { engine, body, result } = current;
    const asked = { ...body, stream: undefined, stream_options: undefined, n: undefined, seed: result.whole.seed ?? body.seed };
    const ids = answers.get(sample).tokens.map((token) => token.id);
    inspector.show({ engine, request: asked, ids, index, sample });
  }

  function finish(mine) {
    const end = performance.now();
    for (const answer of answers.values()) answer.finish();
    fill(status, statusParts(mine, end));
    response.show(() => JSON.stringify(mine.result.whole, null, 2));
    ready();
    onEnd(mine.result.whole, mine);
  }

  async function stop() {
    if (!current?.running) return;
    const { abort, result } = current;
    const id = result.whole.id?.replace(/^(cmpl|chatcmpl)-/, "");
    fill(status, h("span", { class: "pz-spinner" }), h("span", {}, t("stopping")));
    halt.disabled = true;
    current.stopped = true;
    current.patience = setTimeout(() => abort.abort(), PATIENCE_MS);
    if (!id) abort.abort();
    else await playApi.cancel(id).catch(() => abort.abort());
  }

  return {
    element,
    run,
    changed: () => request.show(() => JSON.stringify(prepare().body, null, 2)),
    destroy() {
      forget();
      document.removeEventListener("keydown", keys);
      current?.abort.abort();
    },
  };
}

export const said = (name, text) => h("p", { class: "pz-play-said" }, icon(name), h("span", {}, text));

/** That a form was filled from a stored request, and with what it was not. */
export const replayNotice = ({ id, leftOut }) => [
  said("check", t("play_replayed", { id })),
  leftOut.length > 0 && said("warning", t("play_replay_left_out", { fields: leftOut.join(", ") })),
];

export const problem = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

export const noModel = () =>
  h("p", { class: "pz-problem" }, icon("info"), h("span", {}, t("no_model_loaded"), " ", h("a", { href: "/models" }, t("see_models")))); // prettier-ignore

function statusParts(run, end) {
  if (run.error) return problem(run.error);
  const { whole } = run.result;
  const usage = whole.usage;
  const spent = (end - run.started) / 1000;
  const parts = [];
  if (usage) {
    const counts = { input: number(usage.prompt_tokens), output: number(usage.completion_tokens) };
    parts.push([t("tokens_in_out", counts), t("play_usage_definition")]);
  }
  if (run.firstAt) {
    const time = seconds((run.firstAt - run.started) / 1000);
    parts.push([t("play_first_after", { time }), t("play_first_definition")]);
  }
  if (usage) {
    const speed = rate(usage.completion_tokens / spent);
    parts.push([t("n_tokens_per_s", { rate: speed }), t("play_rate_definition")]);
  }
  parts.push([seconds(spent), t("play_time_definition")]);
  for (const choice of whole.choices) parts.push([whyStopped(choice, run)]);
  if (whole.seed !== undefined) parts.push([`${t("seed")} ${whole.seed}`]);
  if (whole.model) parts.push([whole.model]);
  return parts.map(([text, title]) => h("span", { title }, text));
}

/** Why an answer ended, in words. */
function whyStopped(choice, run) {
  const guided = Object.keys(run.body).some((name) => name.startsWith("guided_") || name === "response_format");
  const finish = choice.finish_reason;
  if (finish === "abort") return t("completion_stopped");
  if (!finish) return run.stopped ? t("completion_stopped") : t("play_why_cut");
  if (finish === "stop" && choice.stop_reason) return t("play_why_stop_string", { text: JSON.stringify(choice.stop_reason) });
  if (finish === "stop") return guided ? t("play_why_grammar") : t("play_why_end");
  if (finish === "length") return run.body.max_tokens ? t("play_why_max_tokens", { n: number(run.body.max_tokens) }) : t("play_why_length"); // prettier-ignore
  return word("finish", finish);
}
