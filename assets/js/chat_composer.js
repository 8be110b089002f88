// Where one writes: Enter sends, Shift+Enter breaks the line, Esc stops. Without a model it offers to load one.

import { createAttachments } from "./chat_attachments.js";
import { createTokenCount } from "./chat_count.js";
import { button, fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";

const TALLEST_PX = 220;

/** `context()`: what a message would be counted with: {conversation_id?, system_prompt?}. */
export function createComposer({ send, stop, load, context }) {
  const area = h("textarea", {
    class: "pz-composer-text",
    rows: 1,
    placeholder: t("message_placeholder"),
    "aria-label": t("message"),
    id: "pz-message",
  });
  const act = h("button", { type: "button", class: "pz-button pz-primary pz-send" });
  const notice = h("div", { class: "pz-composer-notice" });
  const models = h("select", { class: "pz-field pz-composer-model", "aria-label": t("model") });
  const attachments = createAttachments(() => recount());
  const count = createTokenCount((found) => attachments.setTokens(found.attachment_tokens));
  const element = h(
    "div",
    { class: "pz-composer" },
    notice,
    h("div", { class: "pz-composer-box" }, attachments.element, attachments.button, area, models, act),
    h("p", { class: "pz-composer-hint" }, h("span", { class: "pz-composer-keys" }, t("composer_hint")), count.element),
  );
  let state = { generating: false, ready: false };
  let preferred = null;

  const grow = () => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, TALLEST_PX)}px`;
  };
  const submit = async () => {
    const content = area.value.trim();
    if (!content || state.generating || !state.ready) return;
    const files = attachments.list();
    area.value = "";
    attachments.replace([]);
    count.clear();
    grow();
    const sent = await send(content, files);
    if (!sent && !area.value) {
      area.value = content;
      attachments.replace(files);
      recount();
    }
    grow();
  };

  /** Nothing written and nothing attached needs no count. */
  function recount() {
    const written = area.value.trim() || attachments.list().length;
    if (!written || !state.ready) return count.clear();
    const model = models.value ? { model_id: models.value } : {};
    return count.ask({ ...context(), content: area.value.trim(), attachments: attachments.list(), ...model });
  }

  area.addEventListener("input", () => {
    grow();
    recount();
  });
  area.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attachments.read([...event.clipboardData.files]);
  });
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    attachments.read([...event.dataTransfer.files]);
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  act.addEventListener("click", () => (state.generating ? stop() : submit()));

  /** {conversation: id|null, generating, stopping, ready, models: [id], loading: text|null, defaultModel} */
  function show(next) {
    if (JSON.stringify(next) === JSON.stringify(state)) return;
    state = next;
    const label = t(next.generating ? (next.stopping ? "stopping" : "stop") : "send");
    act.classList.toggle("pz-stop", next.generating);
    act.setAttribute("aria-label", label);
    act.title = label;
    act.disabled = next.generating ? next.stopping : !next.ready;
    fill(act, icon(next.generating ? "stop" : "send"), h("span", {}, label));
    models.hidden = next.models.length < 2;
    const chosen = preferred ?? models.value;
    fill(
      models,
      next.models.map((id) => h("option", { value: id }, id)),
    );
    if (next.models.includes(chosen)) models.value = chosen;
    fill(notice, noticeFor(next));
    recount();
  }

  function noticeFor({ ready, loading, defaultModel }) {
    if (ready) return null;
    if (loading) return h("p", { class: "pz-notice" }, h("span", { class: "pz-spinner" }), loading);
    return h(
      "p",
      { class: "pz-notice" },
      h("span", { class: "pz-grow" }, t("no_model_read_only")),
      defaultModel
        ? button(t("load_to_continue", { model: defaultModel }), load, { kind: "primary", iconName: "play" })
        : null,
    );
  }

  /** Choose a model, now or as soon as it is loaded; what the operator chooses afterwards stands. */
  function prefer(id) {
    preferred = id;
    if (state.models?.includes(id)) models.value = id;
  }
  models.addEventListener("change", () => {
    preferred = null;
    recount();
  });

  return { element, show, prefer, model: () => models.value || null, focus: () => area.focus() };
}
