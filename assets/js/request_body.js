// The texts of one request, where they are kept. Whatever is in them is shown as text, never as markup.

import { api } from "./api.js";
import { button, h, icon } from "./dom.js";
import { confirmDialog } from "./dialog.js";
import { number, t } from "./i18n.js";
import { attempt, toast } from "./toast.js";

/** `onDeleted` is called when the texts are gone. */
export function bodyPane(request, onDeleted) {
  const body = request.body;
  if (!body) return noBody(request);
  const remove = async () => {
    const sure = await confirmDialog(t("req_body_delete"), t("req_body_delete_text"), t("req_body_delete"));
    if (!sure || (await attempt(() => api.deleteRequestBody(request.id))) === undefined) return;
    toast(t("req_body_deleted"), "ok");
    onDeleted();
  };
  return [
    body.truncated ? h("p", { class: "pz-hint" }, t("req_body_truncated")) : null,
    body.messages
      ? body.messages.map((message) => text(t("req_body_message", { role: message.role }), spoken(message)))
      : text(t("req_body_prompt"), body.prompt),
    body.answers.map((answer, i) =>
      text(body.answers.length > 1 ? t("req_body_answer_n", { n: number(i + 1) }) : t("req_body_answer"), answer),
    ),
    h(
      "details",
      { class: "pz-req-twin" },
      h("summary", {}, t("req_body_sampling")),
      h("pre", { class: "pz-req-text", tabindex: 0 }, JSON.stringify(body.sampling, null, 2)),
    ),
    h("div", { class: "pz-actions" }, button(t("req_body_delete"), remove, { kind: "danger", iconName: "trash" })),
  ];
}

function noBody(request) {
  const key = request.running ? "req_body_running" : request.stores_bodies ? "req_body_none" : "req_body_off";
  return h(
    "div",
    { class: "pz-empty pz-req-first" },
    h("p", {}, t(key)),
    request.stores_bodies
      ? null
      : h(
          "a",
          { class: "pz-button pz-secondary", href: "/settings?tab=retention" },
          icon("sliders"),
          h("span", {}, t("req_to_settings")),
        ),
  );
}

const text = (title, content) =>
  h("div", {}, h("h3", {}, title), h("pre", { class: "pz-req-text", tabindex: 0 }, content || t("req_body_empty")));

function spoken({ content, tool_calls: calls }) {
  const said = Array.isArray(content) ? content.map((part) => part.text ?? "").join("") : (content ?? "");
  return calls ? `${said}${said ? "\n" : ""}${JSON.stringify(calls, null, 2)}` : said;
}
