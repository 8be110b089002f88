// Whose figures are shown: all engines together, the one chosen in the header, or one that lived in this time.
// Owns the select; knows nothing of what is drawn.

import { chosenEngine, onChosenEngine } from "./chosen_engine.js";
import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { clock, t } from "./i18n.js";
import { attempt } from "./toast.js";

/** {element, read(since, until), id(), show(word), destroy()}; word: null, "chosen" or an engine run's id. */
export function createEngineChoice(onChange) {
  let word = null;
  let runs = [];
  const select = h("select", {
    class: "pz-field pz-engine-choice",
    "aria-label": t("mon_engine"),
    onchange: () => {
      word = select.value === "all" ? null : select.value;
      onChange(word);
    },
  });
  const leave = onChosenEngine(() => {
    draw();
    if (word === "chosen") onChange(word);
  });

  async function read(since, until) {
    const found = await attempt(() => api.engineRuns({ since: Math.max(0, since), until, limit: 30 }));
    if (!found) return;
    runs = found;
    draw();
  }

  const named = (run) =>
    t(run.ended_at === null ? "mon_run_alive" : "mon_run_ended", { model: run.model_id, since: clock(run.started_at) });

  function draw() {
    const chosen = runs.find((run) => run.id === chosenEngine());
    const options = [
      ["all", t("mon_all_engines")],
      ["chosen", chosen ? t("mon_chosen_is", { model: chosen.model_id }) : t("mon_chosen")],
      ...runs.map((run) => [run.id, named(run)]),
    ];
    const missing = word && !options.some(([value]) => value === word);
    if (missing) options.push([word, t("mon_run_unknown", { id: word })]);
    fill(
      select,
      options.map(([value, label]) => h("option", { value, selected: value === (word ?? "all") }, label)),
    );
    select.value = word ?? "all";
  }

  function show(newWord) {
    word = newWord;
    draw();
  }

  const id = () => (word === "chosen" ? chosenEngine() : word);
  const causeOf = (since) => runs.find((run) => run.ended_at !== null && Math.abs(run.ended_at - since) < 90)?.cause;
  draw();
  return { element: select, read, id, show, causeOf, destroy: leave };
}
