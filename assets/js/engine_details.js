// What became of the operator's wishes in a loaded engine, and what was lost with one that failed: nothing is silent.

import { button, fill, h, icon } from "./dom.js";
import { bytes, clock, number, t, word } from "./i18n.js";
import { startLoad } from "./jobs.js";
import { logTail } from "./job_line.js";
import { LAST } from "./load_profiles.js";
import { toast } from "./toast.js";

const SHOWN_LOST = 8;
const PARTS = ["weights_bytes", "draft_weights_bytes", "kv_bytes", "workspace_bytes", "runtime_bytes"];

/** Of a ready engine: exactness, each setting as it was asked for and as it is, and its log. {element, update(engine)}:
 * reasons may name figures that go on, so the settings are brought up to date in place. */
export function engineFacts(engine) {
  const settings = h("div", {});
  let shown = "";
  function update(engine) {
    const found = engine.effective_settings ?? [];
    if (JSON.stringify(found) === shown) return;
    shown = JSON.stringify(found);
    fill(settings, found.length ? settingsTable(found) : h("p", { class: "pz-hint" }, t("mod_effective_none")));
  }
  const element = h(
    "details",
    { class: "pz-log pz-engine-facts" },
    h(
      "summary",
      {},
      t("engine_summary", {
        device: engine.device_name || engine.device,
        dtype: engine.dtype,
        context: number(engine.max_model_len),
      }),
    ),
    h("p", { class: "pz-hint" }, `${t("exactness")}: ${word("exactness", engine.exactness)}. ${engine.exactness_reason ?? ""}`),
    h("p", {}, h("strong", {}, t("mod_effective"))),
    settings,
    logTail(engine.log_tail),
  );
  update(engine);
  return { element, update };
}

/** A row a setting, and under it the reason over the whole width: cards are narrow. */
const settingsTable = (settings) =>
  h(
    "table",
    { class: "pz-table pz-settings" },
    h("thead", {}, h("tr", {}, ["mod_setting", "mod_requested", "mod_effective_value"].map((key) => h("th", { scope: "col" }, t(key))))),
    settings.map((each) =>
      h(
        "tbody",
        {},
        h("tr", {}, h("td", {}, h("code", {}, each.name)), h("td", {}, each.requested), h("td", {}, each.effective)),
        each.reason ? h("tr", {}, h("td", { colspan: 3, class: "pz-hint pz-reason" }, `${t("mod_reason")}: ${each.reason}`)) : null,
      ),
    ),
  );

/** Of an engine that ended by itself: why, which requests were lost, the end of its log, and a report to copy. */
export function crashReport(engine) {
  const lost = engine.lost_requests;
  return h(
    "div",
    { class: "pz-stack pz-crash" },
    h("p", {}, h("strong", {}, word("mod_failure", engine.failure_kind))),
    h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, engine.error)),
    h(
      "p",
      { class: "pz-hint" },
      lost.length ? t("mod_lost", { n: lost.length, ids: lost.slice(0, SHOWN_LOST).join(", ") + (lost.length > SHOWN_LOST ? "…" : "") }) : t("mod_lost_none"),
      ` ${t("mod_not_restarted")}`,
    ),
    engine.failure_kind === "out_of_memory" ? outOfMemory(engine) : null,
    logTail(engine.log_tail),
    h("div", {}, button(t("mod_copy_report"), () => copy(engine), { kind: "quiet", iconName: "copy" })),
  );
}

/** Memory ran out while it served: what it had of it, and the two loads that take less. */
function outOfMemory(engine) {
  const parts = Object.entries(engine.memory)
    .filter(([name, size]) => PARTS.includes(name) && size > 0)
    .map(([name, size]) => `${word("part", name.replace("_bytes", ""))} ${bytes(size)}`);
  const sequences = Math.max(1, Math.floor(engine.options.max_num_seqs / 2));
  const cache = Math.floor(engine.memory.kv_bytes / 2);
  const load = (options) => startLoad(engine.model_id, options, { profile: LAST });
  return [
    parts.length ? h("p", { class: "pz-hint pz-figure" }, t("mod_oom_parts", { parts: parts.join(", ") })) : null,
    h(
      "div",
      { class: "pz-actions" },
      button(t("mod_way_fewer_sequences", { n: number(sequences) }), () => load({ max_num_seqs: sequences })),
      cache > 0
        ? button(t("mod_way_smaller_cache", { size: bytes(cache) }), () => load({ kv_cache_memory_bytes: cache }))
        : null,
    ),
  ];
}

async function copy(engine) {
  try {
    await navigator.clipboard.writeText(report(engine));
    toast(t("mod_report_copied"), "ok");
  } catch {
    toast(t("mod_report_not_copied"), "error");
  }
}

/** In English, whatever the page speaks: it goes to whoever can help. */
export function report(engine) {
  const options = Object.entries(engine.options).filter(([, value]) => value !== null && value !== "");
  return [
    `Pizarra: the engine ${engine.id} of ${engine.model_id} failed (${engine.failure_kind}), started ${clock(engine.started_at)}`,
    engine.error,
    `lost requests: ${engine.lost_requests.join(", ") || "none"}`,
    `options: ${options.map(([name, value]) => `${name}=${value}`).join(" ")}`,
    `device: ${engine.device_name ?? "not known"}, ${engine.dtype ?? "not known"}`,
    "last log lines:",
    ...engine.log_tail,
  ].join("\n");
}
