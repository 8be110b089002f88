// What a load would take, drawn against the memory that is free now: parts, limit, the error bar of earlier loads; and
// what to do where it does not fit. Knows nothing of fields.

import { button, fill, h, icon } from "./dom.js";
import { wayButton } from "./failed_load.js";
import { bytes, number, t, word } from "./i18n.js";
import { createMemoryBar, partsLegend } from "./memory_bar.js";

const PARTS = ["weights", "drafter", "kv", "workspace", "runtime"];
const SHOWN_WAYS = 2;

/** {element, show(estimate), fail(message)}; `take(way)`: the operator chose a way out, `unload(model)`: to unload one first. */
export function createEstimate({ take, unload }) {
  const bar = createMemoryBar("pz-estimate-bar");
  const error = h("span", { class: "pz-estimate-error" });
  const limit = h("span", { class: "pz-estimate-limit" });
  const track = h("div", { class: "pz-estimate-track" }, bar.element, error, limit);
  const verdict = h("div", { class: "pz-estimate", "aria-live": "polite" });
  const element = h("section", { class: "pz-estimate-pane", "aria-label": t("mod_estimate") }, track, verdict);

  function show(found) {
    const parts = PARTS.map((name) => ({ name, bytes: found[`${name}_bytes`] }));
    const scale = 1.04 * Math.max(found.available_bytes, found.total_bytes, found.learned?.high_bytes ?? 0);
    track.hidden = false;
    bar.update(parts, scale);
    limit.style.left = `${(100 * found.available_bytes) / scale}%`;
    limit.title = t("mod_limit_here", { available: bytes(found.available_bytes) });
    drawError(found.learned, scale);
    fill(
      verdict,
      partsLegend(parts),
      found.fits ? fits(found) : refused(found, take),
      h("p", { class: "pz-hint pz-figure" }, learnedText(found)),
      found.fits ? room(found, unload) : null,
      h("p", { class: "pz-hint pz-figure" }, [
        t("estimate_context", { context: number(found.max_model_len), per_token: bytes(found.kv_bytes_per_token) }),
        ` · ${t("estimate_speculation", { name: found.speculation })}`,
      ]),
      found.drafter_note ? h("p", { class: "pz-hint" }, found.drafter_note) : null,
    );
  }

  function drawError(learned, scale) {
    error.hidden = learned === null;
    if (learned === null) return;
    error.style.left = `${(100 * learned.low_bytes) / scale}%`;
    error.style.width = `${(100 * (learned.high_bytes - learned.low_bytes)) / scale}%`;
    error.title = errorText(learned);
  }

  function fail(message) {
    track.hidden = true;
    fill(verdict, problem(message));
  }

  return { element, show, fail };
}

const problem = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

const errorText = (learned) =>
  t(bytes(learned.low_bytes) === bytes(learned.high_bytes) ? "mod_learned_once" : "mod_learned", { n: learned.loads, low: bytes(learned.low_bytes), high: bytes(learned.high_bytes) });

const learnedText = (found) => (found.learned === null ? t("mod_nothing_learned") : errorText(found.learned));

function fits(found) {
  const numbers = { total: bytes(found.total_bytes), available: bytes(found.available_bytes) };
  return h("p", { class: "pz-fit", "data-fits": "yes" }, icon("check"), h("span", {}, t("estimate_fits", numbers)));
}

function refused(found, take) {
  return [
    h("p", {}, h("strong", {}, t(`mod_refusal_${found.refusal.kind}`, { short: bytes(found.refusal.short_by_bytes) }))),
    found.refusal.kind === "options"
      ? problem(found.refusal.message)
      : [
          problem(t("mod_needs", { total: bytes(found.total_bytes), available: bytes(found.available_bytes) })),
          h("details", { class: "pz-log" }, h("summary", {}, t("mod_in_full")), h("p", { class: "pz-hint" }, found.refusal.message)),
        ],
    found.ways_out.length
      ? h(
          "div",
          { class: "pz-actions", role: "group", "aria-label": t("mod_ways_out") },
          found.ways_out.slice(0, SHOWN_WAYS).map((way) => wayButton(way, () => take(way))),
        )
      : h("p", { class: "pz-hint" }, t("mod_no_way_out")),
  ];
}

/** Who has the memory that is not free, and what unloading one of the models would give. */
function room(found, unload) {
  const held = found.held
    .filter((holder) => holder.bytes > 0)
    .map((holder) => `${holder.kind === "engine" ? holder.name : word("part", holder.kind)} ${bytes(holder.bytes)}`)
    .join(", ");
  return [
    h("p", { class: "pz-hint pz-figure" }, t("estimate_held", { held })),
    found.after_unload.map((each) =>
      h(
        "p",
        { class: "pz-hint pz-figure pz-row" },
        h("span", { class: "pz-grow" }, t("mod_after_unload", { model: each.model_id, available: bytes(each.available_bytes) })),
        button(t("mod_unload_first"), () => unload(each.model_id), { kind: "quiet" }),
      ),
    ),
  ];
}
