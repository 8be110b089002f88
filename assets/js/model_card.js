// One model: what it is, whether it fits, and the one or two things that can be done with it now.

import { api } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { openDoctorDialog } from "./doctor_dialog.js";
import { button, h, icon, iconButton } from "./dom.js";
import { factList } from "./fact_list.js";
import { openBenchmarkDialog } from "./benchmark_dialog.js";
import { crashReport } from "./engine_details.js";
import { bytes, number, parameters, t, timeAgo, word } from "./i18n.js";
import { jobLine } from "./job_line.js";
import { jobOutcome } from "./job_outcome.js";
import { isRunning, startUnload } from "./jobs.js";
import { openLoadDialog } from "./load_dialog.js";
import { openPullDialog } from "./pull_dialog.js";
import { openQuantizeDialog } from "./quantize_dialog.js";
import { attempt } from "./toast.js";
import { openTrainDialog } from "./train_dialog.js";
import { unloadModel } from "./unload_dialog.js";

/**
 * context: {job, engine, differences (what a reload would change), refresh}, and what is brought up to date in place:
 * speculation (a speculationLine), idle (an idleLine), facts (engineFacts, null unless it is ready), jobLine.
 */
export function modelCard(row, context) {
  return h(
    "article",
    { class: "pz-card pz-model", dataset: { model: row.id, state: row.state } },
    h(
      "div",
      { class: "pz-model-head" },
      h("h3", {}, row.name || row.id),
      h("span", { class: "pz-chip", "data-state": row.state }, word("modelstate", row.state)),
    ),
    h("code", { class: "pz-model-id" }, row.id),
    row.description ? h("p", { class: "pz-model-text" }, row.description) : null,
    facts(row),
    row.support === "native"
      ? fit(row)
      : h(
          "p",
          { class: "pz-hint" },
          `${word("support", row.support)}${row.support_reason ? `: ${row.support_reason}` : ""}`,
        ),
    context.job?.state === "failed" && context.engine?.state !== "failed" ? failure(context.job) : problem(row, context.engine),
    context.engine?.state === "ready"
      ? [context.speculation.element, context.idle.element, reloadHint(row, context.differences), context.facts.element]
      : null,
    context.job && (isRunning(context.job) || context.job.kind === "unload") ? context.jobLine.element : null,
    h("div", { class: "pz-actions" }, actions(row, context)),
  );
}

function facts(row) {
  const known = [
    [t("parameters"), row.num_parameters && parameters(row.num_parameters)],
    [t("size"), row.size_bytes && bytes(row.size_bytes)],
    [t("quantization"), row.quantization],
    [t("context"), row.context_length && number(row.context_length)],
    [t("format"), row.format],
    [t("licence"), row.license && licence(row)],
    [t("mod_last_used"), row.on_disk && (row.last_used_at ? timeAgo(row.last_used_at) : t("mod_never_used"))],
  ];
  return [factList(known), row.path ? h("code", { class: "pz-model-id", title: t("mod_path") }, row.path) : null];
}

function licence(row) {
  const name = row.gated ? t("gated", { licence: row.license }) : row.license;
  if (!/^https?:\/\//.test(row.license_url ?? "")) return name;
  return h("a", { href: row.license_url, target: "_blank", rel: "noopener noreferrer" }, name);
}

/** Whether the card of a row says if the model fits: of one that is in memory it does not. */
export const showsFit = (row) => !["loaded", "loading", "unloading", "broken"].includes(row.state);

function fit(row) {
  const { fits, needed_bytes: needed, available_bytes: available, short_by_bytes: short } = row.fit;
  if (!showsFit(row)) return null;
  const numbers = { needed: bytes(needed), available: bytes(available), short: bytes(short) };
  return h(
    "p",
    { class: "pz-fit", "data-fits": fits },
    icon(fits === "yes" ? "check" : fits === "no" ? "warning" : "info"),
    h(
      "span",
      {},
      fits === "after_unload" && row.fit.unload.length
        ? t("mod_fits_after", { ...numbers, models: row.fit.unload.join(", ") })
        : t(`fits_${fits}`, numbers),
    ),
  );
}

/** What is wrong with a model, or what its engine died of with the last that it said. */
function problem(row, engine) {
  if (engine?.state === "failed") return crashReport(engine);
  return row.error ? h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, row.error)) : null;
}

/** A load that failed shows its ways out; another job that failed its reason. */
const failure = (job) => (job?.state === "failed" ? [jobLine(job, () => {}), jobOutcome(job)] : null);

/** Where the profile that loads take differs from what is loaded: collected, then applied by one reload. */
function reloadHint(row, differences) {
  if (!differences?.length) return null;
  const changed = differences.map(({ name, loaded, saved }) => `${name}: ${loaded ?? "–"} → ${saved ?? "–"}`).join(", ");
  return h(
    "div",
    { class: "pz-row pz-reload" },
    h("span", { class: "pz-hint pz-grow" }, t("mod_differs", { changed })),
    button(t("mod_reload"), () => openLoadDialog(row, { loaded: true }), { kind: "quiet", iconName: "refresh" }),
  );
}

function actions(row, context) {
  const unload = (force) =>
    button(
      t(force ? "unload_now" : "unload"),
      () => (force ? startUnload(row.id, true) : unloadModel(row.id, context.engine.id)),
      { iconName: "eject" },
    );
  switch (row.state) {
    case "available":
      return row.support === "not_yet" ? null : button(t("pull"), () => openPullDialog(row), { iconName: "download" });
    case "on_disk":
    case "failed":
      return [
        row.on_disk && row.support !== "not_yet"
          ? button(t("load"), () => openLoadDialog(row), { kind: "primary", iconName: "play" })
          : null,
        row.on_disk ? [check(row), quantize(row), train(row), erase(row, context)] : null,
      ];
    case "broken":
      return [check(row), erase(row, context)];
    case "loaded":
      return [
        h(
          "a",
          { class: "pz-button pz-primary", href: `/chat?model=${encodeURIComponent(row.id)}` },
          icon("chat"),
          h("span", {}, t("chat_with")),
        ),
        unload(false),
        button(t("mod_reload"), () => openLoadDialog(row, { loaded: true }), { kind: "quiet" }),
        button(t("mod_bench"), () => openBenchmarkDialog(row, context.engine), { kind: "quiet" }),
        check(row),
        quantize(row),
        train(row),
      ];
    case "unloading":
      return unload(true);
    default:
      return null;
  }
}

const check = (row) => button(t("check"), () => openDoctorDialog(row), { kind: "quiet" });

const quantize = (row) => button(t("quantize"), () => openQuantizeDialog(row), { kind: "quiet" });

const train = (row) => button(t("mod_train"), () => openTrainDialog(row), { kind: "quiet" });

const erase = (row, context) => iconButton("trash", t("delete"), () => remove(row, context));

async function remove(row, context) {
  const sure = await confirmDialog(
    t("delete_model"),
    t("delete_model_text", { model: row.name || row.id, size: bytes(row.size_bytes), path: row.path ?? "" }),
    t("delete"),
  );
  if (!sure) return;
  await attempt(() => api.deleteModel(row.id));
  context.refresh();
}
