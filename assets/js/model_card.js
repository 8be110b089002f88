// One model: what it is, whether it fits, and the one or two things that can be done with it now.

import { api } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { openDoctorDialog } from "./doctor_dialog.js";
import { button, h, icon, iconButton } from "./dom.js";
import { factList } from "./fact_list.js";
import { bytes, number, parameters, t, word } from "./i18n.js";
import { jobLine, logTail } from "./job_line.js";
import { cancelJob, isRunning, startUnload } from "./jobs.js";
import { openLoadDialog } from "./load_dialog.js";
import { openPullDialog } from "./pull_dialog.js";
import { openQuantizeDialog } from "./quantize_dialog.js";
import { attempt } from "./toast.js";

/** context: {job, engine, speculation (a speculationLine), refresh} */
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
    context.job?.state === "failed" ? null : problem(row, context.engine),
    context.engine?.state === "ready" ? [context.speculation.element, engineFacts(context.engine)] : null,
    context.job && (isRunning(context.job) || context.job.state === "failed" || context.job.kind === "unload")
      ? jobLine(context.job, () => cancelJob(context.job.id))
      : null,
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
  ];
  return factList(known);
}

function licence(row) {
  const name = row.gated ? t("gated", { licence: row.license }) : row.license;
  if (!/^https?:\/\//.test(row.license_url ?? "")) return name;
  return h("a", { href: row.license_url, target: "_blank", rel: "noopener noreferrer" }, name);
}

function fit(row) {
  const { fits, needed_bytes: needed, available_bytes: available, short_by_bytes: short } = row.fit;
  if (row.state === "loaded" || row.state === "broken") return null;
  const numbers = { needed: bytes(needed), available: bytes(available), short: bytes(short) };
  return h(
    "p",
    { class: "pz-fit", "data-fits": fits },
    icon(fits === "yes" ? "check" : fits === "no" ? "warning" : "info"),
    h("span", {}, t(`fits_${fits}`, numbers)),
  );
}

/** What is wrong with a model, or what its engine died of with the last that it said. */
function problem(row, engine) {
  if (!row.error) return null;
  return [h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, row.error)), logTail(engine?.log_tail)];
}

/** What became of the operator's wishes: nothing is silent. */
function engineFacts(engine) {
  const settings = engine.effective_settings ?? [];
  return h(
    "details",
    { class: "pz-log" },
    h(
      "summary",
      {},
      t("engine_summary", {
        device: engine.device_name || engine.device,
        dtype: engine.dtype,
        context: number(engine.max_model_len),
      }),
    ),
    h(
      "p",
      { class: "pz-hint" },
      `${t("exactness")}: ${word("exactness", engine.exactness)}. ${engine.exactness_reason ?? ""}`,
    ),
    h(
      "ul",
      { class: "pz-settings" },
      settings.map((s) =>
        h(
          "li",
          {},
          h("code", {}, s.name),
          ` ${s.requested} → ${s.effective}`,
          h("span", { class: "pz-hint" }, ` ${s.reason}`),
        ),
      ),
    ),
    logTail(engine.log_tail),
  );
}

function actions(row, context) {
  const unload = (force) =>
    button(t(force ? "unload_now" : "unload"), () => startUnload(row.id, force), { iconName: "eject" });
  switch (row.state) {
    case "available":
      return row.support === "not_yet" ? null : button(t("pull"), () => openPullDialog(row), { iconName: "download" });
    case "on_disk":
    case "failed":
      return [
        row.on_disk && row.support !== "not_yet"
          ? button(t("load"), () => openLoadDialog(row), { kind: "primary", iconName: "play" })
          : null,
        row.on_disk ? [check(row), quantize(row), erase(row, context)] : null,
      ];
    case "broken":
      return [check(row), erase(row, context)];
    case "loaded":
      return [
        h("a", { class: "pz-button pz-primary", href: `/chat?model=${encodeURIComponent(row.id)}` }, icon("chat"), h("span", {}, t("chat_with"))),
        unload(false),
        check(row),
        iconButton("sliders", t("quantize"), () => openQuantizeDialog(row)), // four words would not stand in one row
      ];
    case "unloading":
      return unload(true);
    default:
      return null;
  }
}

const check = (row) => button(t("check"), () => openDoctorDialog(row), { kind: "quiet" });

const quantize = (row) => button(t("quantize"), () => openQuantizeDialog(row), { kind: "quiet" });

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
