// Fetch a model: from the catalogue (with its licence to accept where one asks for that), a repository, or a path.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { button, fill, h, icon } from "./dom.js";
import { bytes, t } from "./i18n.js";
import { stageText, startAndWatch } from "./jobs.js";
import { toast } from "./toast.js";

export function openPullDialog(row) {
  if (!row.gated) {
    pull(
      { source: row.id },
      { onerror: (message) => openDialog({ title: t("pull_failed"), body: h("p", { class: "pz-problem" }, message) }) },
    );
    return;
  }
  const accept = h("input", { type: "checkbox", id: "pz-accept" });
  const token = tokenField();
  openForm({
    title: t("pull_model", { model: row.name || row.id }),
    fields: [
      h("p", {}, t("gated_text", { model: row.name || row.id, size: bytes(row.size_bytes) })),
      /^https?:\/\//.test(row.license_url ?? "")
        ? h(
            "p",
            {},
            h(
              "a",
              { href: row.license_url, target: "_blank", rel: "noopener noreferrer" },
              row.license,
              icon("external"),
            ),
          )
        : h("p", {}, row.license),
      h("label", { class: "pz-check", for: "pz-accept" }, accept, t("accept_licence")),
      h("label", { class: "pz-label" }, t("token"), token),
    ],
    request: () => ({ source: row.id, accept_license: accept.checked, ...(token.value ? { token: token.value } : {}) }),
    valid: () => accept.checked,
  });
}

export function openAddDialog() {
  const source = h("input", {
    class: "pz-field",
    placeholder: t("source_placeholder"),
    spellcheck: "false",
    autocomplete: "off",
  });
  const revision = h("input", { class: "pz-field", placeholder: "main", spellcheck: "false" });
  const token = tokenField();
  const accept = h("input", { type: "checkbox", id: "pz-accept" });
  openForm({
    title: t("add_model"),
    fields: [
      h("p", { class: "pz-hint" }, t("add_model_text")),
      h("label", { class: "pz-label" }, t("source"), source),
      h(
        "div",
        { class: "pz-form" },
        h("label", { class: "pz-label" }, t("revision"), revision),
        h("label", { class: "pz-label" }, t("token"), token),
      ),
      h("label", { class: "pz-check", for: "pz-accept" }, accept, t("accept_licence_if_gated")),
    ],
    request: () => {
      const request = { source: source.value.trim(), accept_license: accept.checked };
      if (revision.value.trim()) request.revision = revision.value.trim();
      if (token.value) request.token = token.value;
      return request;
    },
    valid: () => source.value.trim() !== "",
  });
}

const tokenField = () =>
  h("input", { class: "pz-field", type: "password", autocomplete: "off", placeholder: t("token_placeholder") });

function openForm({ title, fields, request, valid }) {
  const outcome = h("div", { "aria-live": "polite" });
  const start = button(t("pull"), () => tryPull(), { kind: "primary", iconName: "download", disabled: true });
  const form = h("div", { class: "pz-stack" }, fields, outcome);
  form.addEventListener("input", () => {
    start.disabled = !valid();
  });
  const dialog = openDialog({ title, body: form, actions: [button(t("cancel"), () => dialog.close()), start] });
  const waiting = (text) => fill(outcome, h("p", { class: "pz-hint pz-row" }, h("span", { class: "pz-spinner" }), text));

  /** The dialog stays until it is known that the source is right: then the rest goes on by itself. */
  async function tryPull() {
    start.disabled = true;
    waiting(t("looking_up"));
    const job = await pull(request(), {
      onchange: (running) => waiting(stageText(running)),
      shows: () => dialog.node.isConnected,
      onerror: (message) => {
        if (!dialog.node.isConnected) return toast(message, "error");
        fill(outcome, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, message)));
        return outcome.scrollIntoView({ block: "nearest" });
      },
    });
    if (job && job.state !== "failed") dialog.close();
    else start.disabled = !valid();
  }
}

async function pull(request, { onchange = () => {}, shows = () => true, onerror }) {
  try {
    const enough = (job) => job.stage === "download";
    const job = await startAndWatch(() => api.pull(request), { enough, onchange, shows });
    if (job.state === "failed" && shows()) onerror(job.error);
    return job;
  } catch (error) {
    onerror(error.message || t("server_unreachable"));
    return undefined;
  }
}
