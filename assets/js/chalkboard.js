// The chalkboard: what was drafted in each step of an answer, and what the model made of it.
// Owns the pane: the form that starts a traced request, the field that opens one, the board, its figures and its text.
// Invariant: the text view is what the steps spell, and what the steps spell is the answer.

import { api } from "./api.js";
import { createBoard } from "./chalkboard_board.js";
import { watchEngine } from "./chalkboard_engine.js";
import { promptForm } from "./chalkboard_form.js";
import { createPlayer } from "./chalkboard_player.js";
import { followTrace, startTraced } from "./chalkboard_source.js";
import { button, fill, h, icon, iconButton, setText } from "./dom.js";
import { number, percent, t, word } from "./i18n.js";
import { attempt } from "./toast.js";

export function mount(element) {
  const board = createBoard();
  const player = createPlayer(board);
  const problem = h("div", { "aria-live": "polite" });
  const summary = h("p", { class: "pz-chalk-summary pz-figure", role: "status" });
  const text = h("pre", { class: "pz-chalk-text", tabindex: 0, "aria-label": t("board_text") });
  const spelled = h("p", { class: "pz-hint" });
  const copy = iconButton("copy", t("copy"), () => navigator.clipboard?.writeText(text.textContent));
  const twin = h(
    "details",
    { class: "pz-chalk-twin", open: true, hidden: true },
    h("summary", {}, t("board_text")),
    h("div", { class: "pz-chalk-text-row" }, text, copy),
    spelled,
  );
  const form = promptForm({
    name: "chalkboard",
    plainChoice: true,
    maxTokens: 1024,
    startLabel: t("board_start"),
    startIcon: "pencil",
    stopLabel: t("stop"),
    start,
    stop,
  });
  const idField = h("input", {
    class: "pz-field",
    placeholder: t("board_open_placeholder"),
    "aria-label": t("board_open"),
  });
  const opener = h(
    "form",
    {
      class: "pz-board-open",
      onsubmit: (event) => {
        event.preventDefault();
        if (idField.value.trim()) open(idField.value.trim());
      },
    },
    h("label", { class: "pz-label pz-grow" }, t("board_open"), idField),
    button(t("board_open_button"), () => opener.requestSubmit(), { kind: "quiet" }),
  );
  fill(
    element,
    h(
      "div",
      { class: "pz-board-page" },
      h("div", { class: "pz-card pz-board-side" }, form.element, opener),
      h("div", { class: "pz-board-main" }, problem, board.element, player.element, summary, twin),
    ),
  );

  let engine = null;
  let running = null; // {controller, id}
  let followed = null; // {id, stop}
  let answer = null; // the text of the answer that was started here, once it is whole

  function fail(error) {
    const said = error.status === 0 ? t("server_unreachable") : error.message;
    fill(problem, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, said)));
  }

  function open(id) {
    followed?.stop();
    answer = null;
    fill(problem);
    board.setTrace({ entries: [], dropped: 0 });
    player.update(true);
    fill(summary);
    twin.hidden = true;
    board.say(h("p", {}, t("board_waiting")));
    const here = new URL(location.href);
    here.searchParams.set("request", id);
    history.replaceState(history.state, "", here);
    board.element.scrollIntoView({ block: "nearest" });
    followed = { id, stop: () => {} };
    const mine = followed;
    mine.stop = followTrace(
      id,
      (trace) => followed === mine && show(trace),
      (error) => {
        if (followed !== mine) return;
        fail(error);
        welcome();
      },
    );
  }

  function show(trace) {
    const isNew = board.numSteps === 0;
    board.setTrace(trace);
    player.update(isNew);
    if (!trace.entries.length && trace.ended) board.say(h("p", {}, t("board_no_steps")));
    fill(summary, summaryParts(trace));
    twin.hidden = !trace.text;
    setText(text, trace.text);
    const isWhole = trace.ended && answer?.id === followed.id && answer.text !== null;
    if (isWhole && answer.text !== trace.text) fill(spelled, h("span", { class: "pz-bad" }, t("board_text_differs")));
    else if (isWhole) fill(spelled, h("span", { class: "pz-ok" }, icon("check")), " ", t("board_text_equal"));
    else setText(spelled, t("board_text_hint"));
    last = trace;
  }
  let last = null;

  async function start(wish) {
    if (!engine || running) return;
    const controller = new AbortController();
    running = { controller, id: null };
    form.setBusy(true);
    fill(problem);
    try {
      const whole = await startTraced(engine, wish, {
        signal: controller.signal,
        onId: (id) => {
          running.id = id;
          idField.value = "";
          open(id);
        },
      });
      answer = { id: running.id, text: whole };
      if (followed?.id === running.id && last?.ended) show(last);
    } catch (error) {
      if (!controller.signal.aborted) fail(error);
    } finally {
      running = null;
      form.setBusy(false);
    }
  }

  function stop() {
    if (running?.id) attempt(() => api.cancelRequest(running.id));
    else running?.controller.abort();
  }

  function welcome() {
    if (!engine) board.say(h("p", {}, t("no_model_loaded")), h("a", { href: "/models" }, t("see_models")));
    else if (engine.speculation?.proposers.length) board.say(h("p", {}, t("board_empty")));
    else board.say(h("p", {}, t("board_empty_plain", { model: engine.model_id })));
  }

  const stopWatch = watchEngine((found) => {
    engine = found;
    form.setEngine(engine);
    if (!followed || !board.numSteps) welcome();
  });
  form.setEngine(null);
  welcome();
  const asked = new URLSearchParams(location.search).get("request");
  if (asked) open(asked);
  return {
    destroy() {
      running?.controller.abort();
      followed?.stop();
      stopWatch();
      player.destroy();
    },
  };
}

/** What the steps add up to, each figure with its definition. */
function summaryParts({ totals, num_output_tokens: told, entries, dropped, ended, finish_reason: reason }) {
  if (!totals.steps) return [];
  const { steps, drafts, drafted, accepted } = totals;
  const sofar = dropped ? null : entries.reduce((sum, entry) => sum + entry.num_accepted + (entry.next ? 1 : 0), 0);
  const tokens = told ?? sofar;
  const part = (value, hint) => h("span", { title: hint }, value);
  return [
    part(
      drafted
        ? t("board_sum_accepted", {
            accepted: number(accepted),
            drafted: number(drafted),
            share: percent(accepted, drafted),
          })
        : t("board_sum_none"),
      t("board_sum_accepted_hint"),
    ),
    drafts
      ? part(t("board_sum_length", { length: number(1 + accepted / drafts, 2) }), t("board_sum_length_hint"))
      : null,
    tokens === null
      ? null
      : part(
          t("board_sum_saved", { tokens: number(tokens), steps: number(steps), saved: number(tokens - steps) }),
          t("board_sum_saved_hint"),
        ),
    ended ? part(word("finish", reason), t("finish_reason")) : part(t("board_writing"), t("board_writing")),
  ];
}
