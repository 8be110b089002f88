// A load that failed: what kind of failure it was, the memory after clean-up, and the ways out as buttons.

import { openDoctorDialog } from "./doctor_dialog.js";
import { button, h, icon } from "./dom.js";
import { bytes, number, t, word } from "./i18n.js";
import { startLoad } from "./jobs.js";
import { logTail } from "./job_line.js";
import { openLoadDialog } from "./load_dialog.js";
import { LAST } from "./load_profiles.js";

const SHOWN_WAYS = 2;
const OF_THE_FILES = ["bad_checkpoint", "unsupported"];

/** job: a failed load whose result has {kind, ways_out, log_tail, memory}. */
export function failedLoad(job) {
  const { kind, ways_out: ways, memory, log_tail: log } = job.result;
  return h(
    "div",
    { class: "pz-failed-load" },
    h("p", {}, h("strong", {}, word("mod_failure", kind))),
    h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, job.error)),
    h(
      "p",
      { class: "pz-hint" },
      t("mod_memory_after", { available: bytes(memory.available_bytes), total: bytes(memory.total_bytes) }),
    ),
    h("div", { class: "pz-actions" }, ways.slice(0, SHOWN_WAYS).map((way) => wayButton(way, () => take(job, way))), others(job, kind)),
    logTail(log),
  );
}

/** A way out of a refusal as a button that says what it changes. */
export function wayButton(way, onclick) {
  return button(wayText(way), onclick, { title: t("mod_way_total", { total: bytes(way.total_bytes) }) });
}

function wayText(way) {
  if (way.kind === "unload") return t("mod_way_unload", { models: way.unload.join(", ") });
  const changed = Object.values(way.options)[0];
  return t(`mod_way_${way.kind}`, { n: typeof changed === "number" ? number(changed) : "" });
}

const take = (job, way) => startLoad(job.subject, way.options, { profile: LAST, unload_first: way.unload });

function others(job, kind) {
  const row = { id: job.subject, name: "", context_length: null };
  return [
    button(t("mod_change_options"), () => openLoadDialog(row), { kind: "quiet", iconName: "sliders" }),
    OF_THE_FILES.includes(kind) ? button(t("check"), () => openDoctorDialog(row), { kind: "quiet" }) : null,
  ];
}
