// What a model's checkpoint is and whether it can be served here: the doctor's report, in a dialog.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { factList } from "./fact_list.js";
import { bytes, number, parameters, t, word } from "./i18n.js";

const SIGN = { ok: "check", note: "info", bad: "warning" };

export async function openDoctorDialog(row) {
  const body = h("div", { class: "pz-stack", "aria-live": "polite" });
  fill(body, h("p", { class: "pz-hint pz-row" }, h("span", { class: "pz-spinner" }), t("checking")));
  const dialog = openDialog({
    title: t("check_of", { model: row.name || row.id }),
    body,
    actions: [button(t("close"), () => dialog.close())],
    wide: true,
  });
  try {
    fill(body, report(await api.doctor(row.id)));
  } catch (error) {
    fill(body, problem(error.message || t("server_unreachable")));
  }
}

const problem = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

function report(found) {
  const checkpoint = found.checkpoint;
  return [
    found.problem ? problem(found.problem) : finding("ok", t("can_be_served")),
    checkpoint.storage ? facts(checkpoint) : null,
    checkpoint.kinds.length ? matrices(checkpoint.kinds) : null,
    h("ul", { class: "pz-findings" }, findings(found)),
    drafts(found.drafts),
    h("code", { class: "pz-model-id" }, checkpoint.path),
  ];
}

function facts(checkpoint) {
  const { storage } = checkpoint;
  const coded = storage.method !== "none";
  const known = [
    [t("format"), formatOf(checkpoint)],
    [t("runs"), word("runner", checkpoint.runner)],
    [t("architecture"), checkpoint.architecture],
    [t("bits"), coded && storage.bits.join(", ")],
    [t("group_size"), coded && storage.group_sizes.join(", ")],
    [t("zero_points"), coded && word("zeros", storage.zero_points)],
    [t("act_order"), coded && t(storage.act_order ? "yes" : "no")],
    [t("parameters"), parameters(checkpoint.num_parameters)],
    [t("context"), number(checkpoint.context_length)],
    [t("output_head"), t(checkpoint.tied_head ? "head_tied" : "head_own")],
    [t("biases"), checkpoint.num_biases ? number(checkpoint.num_biases) : t("none")],
    [t("on_disk"), size(checkpoint.bytes_on_disk, checkpoint.bits_per_weight_on_disk)],
    [t("in_memory"), size(checkpoint.bytes_in_memory, checkpoint.bits_per_weight)],
  ];
  return factList(known);
}

/** GGUF is a file's form and a way of storing matrices: it is said once. */
function formatOf({ format, storage }) {
  const parts = [storage.method === "GGUF" ? null : format, storage.method === "none" ? null : storage.method];
  return [...parts, storage.layout].filter(Boolean).join(" · ");
}

const size = (held, bits) => t("size_and_bits", { size: bytes(held), bits: number(bits, 2) });

function matrices(kinds) {
  const head = [t("matrices"), t("in_codes"), t("plain"), t("stored_as"), t("in_memory")];
  return h(
    "div",
    { class: "pz-table-wrap" },
    h(
      "table",
      { class: "pz-table" },
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, kinds.map((kind) => h("tr", {}, cells(kind).map((text) => h("td", {}, text))))),
    ),
  );
}

const cells = (kind) => [
  word("matrices", kind.kind),
  number(kind.quantised),
  number(kind.plain),
  formats(kind),
  bytes(kind.bytes_in_memory),
];

const formats = (kind) =>
  Object.entries(kind.formats)
    .map(([name, count]) => `${number(count)} ${name}`)
    .join(", ");

function findings({ checkpoint, fit, tokenizer, chat_template: template, environment }) {
  return [
    fit && finding(fit.fits ? "ok" : "bad", fitText(fit), fit.message),
    tokenizer.readable
      ? finding("ok", t("tokenizer_readable", { tokens: number(tokenizer.num_tokens) }))
      : finding("bad", t("tokenizer_unreadable"), tokenizer.reason),
    template && finding(template.accepted ? "ok" : "note", t(templateKey(template)), template.reason),
    template?.limits.map((limit) => finding("note", t("template_limit"), limit)),
    checkpoint.runner === "transformers" && finding("note", word("runner", "transformers"), checkpoint.runner_reason),
    checkpoint.fp16_risk && risk(checkpoint.fp16_risk),
    checkpoint.remarks.map((remark) => finding("note", t("remark"), remark)),
    environment.map((fault) => finding("bad", t("environment"), fault)),
  ];
}

const fitText = (fit) =>
  t(fit.fits ? "check_fits" : "check_short", {
    context: number(fit.fits ? fit.max_model_len : fit.max_model_len_that_fits),
  });

const templateKey = (template) =>
  template.accepted ? "template_accepted" : template.present ? "template_refused" : "template_absent";

const risk = ({ level, reason }) => finding(level === "possible" ? "bad" : "ok", word("risk", level), reason);

function finding(state, title, detail = "") {
  return h(
    "li",
    { class: "pz-finding", "data-state": state },
    icon(SIGN[state]),
    h("span", {}, title, detail ? h("span", { class: "pz-hint" }, detail) : null),
  );
}

function drafts(found) {
  if (!found.length) return null;
  const fitting = found.filter((draft) => draft.matches);
  return h(
    "details",
    { class: "pz-log", open: fitting.length > 0 },
    h("summary", {}, t("drafts_found", { n: number(fitting.length), all: number(found.length) })),
    h(
      "ul",
      { class: "pz-findings" },
      found.map((draft) =>
        finding(
          draft.matches ? "ok" : "note",
          draft.num_parameters ? `${draft.model_id} · ${parameters(draft.num_parameters)}` : draft.model_id,
          draft.reason,
        ),
      ),
    ),
  );
}
