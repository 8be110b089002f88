// Messages as rows: a role, a text, the fields that some roles need. Owns what was typed and its reading.

import { button, fill, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { readJson } from "./play_json.js";

const ROLES = ["system", "user", "assistant", "tool"];

/** createMessages({onChange}) -> {element, read() -> {messages, problems}, fill(messages)} */
export function createMessages({ onChange }) {
  let rows = [];
  const list = h("ol", { class: "pz-play-messages", "aria-label": t("thread") });
  const add = button(t("play_add_message"), () => append({ role: next() }, true), { kind: "quiet", iconName: "plus" });
  const element = h("div", { class: "pz-play-messages-box" }, list, h("div", {}, add));

  const next = () => (rows.at(-1)?.role.value === "user" ? "assistant" : "user");

  function append(message, focus) {
    const row = messageRow(message, onChange, () => {
      rows = rows.filter((each) => each !== row);
      row.element.remove();
      onChange();
    });
    rows.push(row);
    list.append(row.element);
    if (focus) row.content.focus();
    onChange();
  }

  return {
    element,
    fill(messages) {
      rows = [];
      fill(list);
      for (const message of messages) append(message, false);
    },
    read() {
      const problems = [];
      const messages = rows.map((row, index) => {
        const { message, error } = row.read();
        if (error) problems.push([`messages[${index}]`, error]);
        return message;
      });
      return { messages, problems };
    },
  };
}

function messageRow(message, onChange, remove) {
  const kept = { ...message }; // fields that have no input of their own, as `name` and `reasoning_content` have none
  const role = h(
    "select",
    { class: "pz-field", "aria-label": t("play_role"), onchange: changed },
    [...new Set([...ROLES, message.role])].map((name) => h("option", { value: name }, name)),
  );
  role.value = message.role;
  const content = h("textarea", {
    class: "pz-field",
    rows: 3,
    "aria-label": t("play_content"),
    oninput: onChange,
  });
  content.value = textOf(message.content);
  const calls = h("textarea", {
    class: "pz-field pz-play-mono",
    rows: 2,
    placeholder: '[{"id": "call_1", "type": "function", "function": {"name": "…", "arguments": "{}"}}]',
    "aria-label": "tool_calls",
    oninput: onChange,
  });
  calls.value = message.tool_calls ? JSON.stringify(message.tool_calls) : "";
  const callId = h("input", { class: "pz-field pz-play-mono", "aria-label": "tool_call_id", oninput: onChange });
  callId.value = message.tool_call_id ?? "";
  const callsBox = h("details", { class: "pz-play-fold", open: calls.value !== "" }, h("summary", {}, h("code", {}, "tool_calls")), calls); // prettier-ignore
  const callIdBox = h("label", { class: "pz-label" }, h("code", {}, "tool_call_id"), callId);

  function changed() {
    callsBox.hidden = role.value !== "assistant";
    callIdBox.hidden = role.value !== "tool";
    onChange();
  }
  callsBox.hidden = role.value !== "assistant";
  callIdBox.hidden = role.value !== "tool";
  return {
    role,
    content,
    element: h(
      "li",
      { class: "pz-play-message" },
      h("div", { class: "pz-row" }, role, h("span", { class: "pz-grow" }), iconButton("trash", t("play_remove_message"), remove)),
      content,
      callsBox,
      callIdBox,
    ),
    read() {
      const made = { ...kept, role: role.value, content: content.value };
      delete made.tool_calls;
      delete made.tool_call_id;
      if (role.value === "tool") made.tool_call_id = callId.value;
      const { value, error } = role.value === "assistant" ? readJson(calls.value) : {};
      if (value !== undefined) made.tool_calls = value;
      return { message: made, error };
    },
  };
}

/** Content may be a list of parts of text. */
function textOf(content) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? "").join("");
  return content ?? "";
}
