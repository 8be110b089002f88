// One message of a thread: its thoughts, its text, its statistics and its buttons.

import { button, fill, h, icon, iconButton } from "./dom.js";
import { number, rate, seconds, t, word } from "./i18n.js";
import { attachmentList } from "./chat_attachments.js";
import { createThoughtsView } from "./chat_thoughts.js";
import { createMarkdownView } from "./markdown.js";

/** {element, update(message, context), paintText()}; context: {versions, canGenerate, actions, nameModel}. */
export function createMessageView(message) {
  const thoughts = message.role === "assistant" ? createThoughtsView() : null;
  const body = h("div", { class: "pz-message-text" });
  const foot = h("div", { class: "pz-message-foot" });
  const element = h(
    "article",
    {
      class: `pz-message pz-message-${message.role}`,
      "aria-label": t(`role_${message.role}`),
      dataset: { id: message.id },
    },
    attachmentList(message.attachments),
    thoughts?.element,
    body,
    foot,
  );
  const markdown = createMarkdownView(body);
  const view = { element, body, foot, footKey: "", message, scheduled: false, editing: false };
  view.paintText = () => {
    if (view.editing) return;
    if (view.message.role === "user") body.textContent = view.message.content;
    else markdown(view.message.content);
    thoughts?.paint(view.message);
    const { state, content, reasoning_content } = view.message;
    body.hidden = !content && Boolean(reasoning_content); // the thoughts speak for it
    element.classList.toggle("pz-waiting", state === "streaming" && !content && !reasoning_content);
  };
  view.update = (newMessage, context) => {
    const changed = view.message !== newMessage || !element.dataset.state;
    view.message = newMessage;
    element.dataset.state = newMessage.state;
    if (changed) view.paintText();
    const { content, reasoning_content, ...rest } = newMessage;
    const key = JSON.stringify([rest, context.canGenerate, context.nameModel, context.versions.map((version) => version.id)]);
    if (key === view.footKey) return; // a button that has the focus must keep it
    view.footKey = key;
    fill(foot, stateLine(newMessage, context.nameModel), tools(view, context));
  };
  return view;
}

/** Draw new text at the next frame, however many pieces arrive before it. */
export function scheduleText(view, after) {
  if (view.scheduled) return;
  view.scheduled = true;
  requestAnimationFrame(() => {
    view.scheduled = false;
    view.paintText();
    after();
  });
}

/** What became of an answer and what it cost. */
function stateLine(message, nameModel) {
  if (message.role !== "assistant" || message.state === "streaming") return null;
  const parts = [];
  const stats = message.stats;
  if (message.state === "failed")
    parts.push(h("span", { class: "pz-bad" }, icon("warning"), message.error || t("answer_failed")));
  if (message.finish_reason === "abort" && stats)
    parts.push(h("span", { class: "pz-warn" }, t("stopped_at", { n: number(stats.num_output_tokens) })));
  else if (message.state === "interrupted")
    parts.push(h("span", { class: "pz-warn", title: message.error }, t("answer_interrupted")));
  if (nameModel && message.model_id) parts.push(message.model_id);
  if (message.reasoning_content && !message.content) parts.push(h("span", { class: "pz-warn" }, t("only_thoughts")));
  if (typeof stats?.num_output_tokens === "number") {
    parts.push(t("tokens_in_out", { input: number(stats.num_prompt_tokens), output: number(stats.num_output_tokens) }));
    if (stats.num_cached_tokens)
      parts.push(
        h("span", { title: t("chat_cached_definition") }, t("chat_cached", { n: number(stats.num_cached_tokens) })),
      );
    if (typeof stats.tokens_per_s === "number") parts.push(t("n_tokens_per_s", { rate: rate(stats.tokens_per_s) }));
    if (typeof stats.ttft_s === "number")
      parts.push(h("span", { title: t("ttft_long") }, `TTFT ${seconds(stats.ttft_s)}`));
  }
  if (stats?.drafted)
    parts.push(
      h(
        "span",
        { title: t("chat_accepted_definition") },
        t("chat_accepted", { accepted: number(stats.accepted), drafted: number(stats.drafted) }),
      ),
    );
  if (message.finish_reason && message.finish_reason !== "abort") {
    parts.push(h("span", { title: t("finish_reason") }, word("finish", message.finish_reason)));
  }
  if (message.request_id)
    parts.push(
      h("a", { href: `/requests?id=${encodeURIComponent(message.request_id)}`, class: "pz-quiet-link" }, t("chat_request")),
    );
  const title = stats?.seed !== null && stats?.seed !== undefined ? `${t("seed")} ${stats.seed}` : null;
  return h(
    "div",
    { class: "pz-message-stats pz-figure", title },
    parts.map((part) => h("span", {}, part)),
  );
}

function tools(view, { versions, canGenerate, actions }) {
  const message = view.message;
  if (message.state === "streaming") return null;
  const copy = iconButton("copy", t("copy"), () => navigator.clipboard.writeText(message.content));
  const mine =
    message.role === "user"
      ? iconButton("pencil", t("edit"), () => edit(view, actions), { disabled: !canGenerate })
      : iconButton("refresh", t("regenerate"), () => actions.regenerate(message), { disabled: !canGenerate });
  const more =
    message.role === "assistant" && message.content && (message.finish_reason !== "stop" || message.state !== "complete")
      ? iconButton("play", t("chat_continue"), () => actions.goOn(message), { disabled: !canGenerate })
      : null;
  return h("div", { class: "pz-message-tools" }, versionSwitch(message, versions, actions), copy, mine, more);
}

function versionSwitch(message, versions, actions) {
  if (versions.length < 2) return null;
  const place = versions.findIndex((version) => version.id === message.id);
  const step = (by, name, label) =>
    iconButton(name, label, () => actions.choose(versions[place + by]), { disabled: !versions[place + by] });
  return h(
    "span",
    { class: "pz-versions" },
    step(-1, "left", t("previous_version")),
    h(
      "span",
      { class: "pz-figure", "aria-label": t("version_of", { n: place + 1, all: versions.length }) },
      `${place + 1}/${versions.length}`,
    ),
    step(1, "right", t("next_version")),
  );
}

/** Write a question anew; sending it makes a branch and keeps the old one. */
function edit(view, actions) {
  const area = h("textarea", { class: "pz-field", rows: 4, "aria-label": t("edit"), value: view.message.content });
  const leave = () => {
    view.editing = false;
    view.paintText();
  };
  const send = () => {
    const content = area.value.trim();
    leave();
    if (content) actions.edit(view.message, content);
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  });
  view.editing = true;
  fill(
    view.body,
    area,
    h("div", { class: "pz-actions" }, button(t("cancel"), leave), button(t("send"), send, { kind: "primary" })),
  );
  area.focus();
}
