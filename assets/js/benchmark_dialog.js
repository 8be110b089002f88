// Measure a loaded engine: how long a prompt, how long an answer, how many at once, how often.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, h } from "./dom.js";
import { t } from "./i18n.js";
import { attempt } from "./toast.js";

const SPECULATION = ["both", "off", "on"];
const BATCHES = [1, 4, 16];

export function openBenchmarkDialog(row, engine) {
  const most = engine.max_model_len ?? 320;
  const half = Math.max(8, Math.floor(most / 2));
  const prompt = numberField(Math.min(128, half), 8, most - 8);
  const output = numberField(Math.min(64, half), 8, most - 8);
  const repeats = numberField(3, 1, 20);
  const speculates = (engine.speculation?.proposers.length ?? 0) > 0;
  const mode = h("select", { class: "pz-field", disabled: !speculates }, SPECULATION.map((value) => h("option", { value }, t(`mod_bench_mode_${value}`))));
  if (!speculates) mode.value = "off";
  const batches = BATCHES.map((batch) => {
    const box = h("input", { type: "checkbox", checked: batch <= engine.options.max_num_seqs, disabled: batch > engine.options.max_num_seqs });
    return { batch, box, element: h("label", { class: "pz-check" }, box, String(batch)) };
  });
  const start = button(t("mod_bench_start"), begin, { kind: "primary", iconName: "play" });
  const field = (name, input) => h("label", { class: "pz-label" }, t(name), input);
  const dialog = openDialog({
    title: t("mod_bench_of", { model: row.name || row.id }),
    body: [
      h("p", { class: "pz-hint" }, t("mod_bench_text")),
      h(
        "div",
        { class: "pz-form" },
        field("mod_bench_prompt", prompt),
        field("mod_bench_output", output),
        field("mod_bench_repeats", repeats),
        field("mod_bench_drafts", mode),
      ),
      h("fieldset", { class: "pz-choices" }, h("legend", {}, t("mod_bench_batches")), batches.map((each) => each.element)),
    ],
    actions: [button(t("cancel"), () => dialog.close()), start],
  });
  dialog.node.addEventListener("input", () => {
    start.disabled = dialog.node.querySelector(":invalid") !== null || !batches.some((each) => each.box.checked);
  });

  async function begin() {
    start.disabled = true;
    const wish = {
      prompt_tokens: Number(prompt.value),
      output_tokens: Number(output.value),
      repeats: Number(repeats.value),
      speculation: mode.value,
      batches: batches.filter((each) => each.box.checked).map((each) => each.batch),
    };
    if (await attempt(() => api.benchmark(engine.id, wish))) dialog.close();
    start.disabled = false;
  }
}

const numberField = (value, min, max) => h("input", { class: "pz-field pz-figure", type: "number", value, min, max, step: 1, required: true });
