// Folders of chats: how a list is divided, and the dialog that moves one. A folder is there while a chat is in it.

import { openDialog } from "./dialog.js";
import { button, h, icon } from "./dom.js";
import { number, t } from "./i18n.js";

const OPEN_KEY = "pizarra.chat.closed-folders";

const closed = new Set(JSON.parse(localStorage.getItem(OPEN_KEY) ?? "[]"));

/** Items of a list under their folders, those of none first. `item(conversation)` makes each. */
export function grouped(conversations, item, current) {
  const folders = new Map([["", []]]);
  for (const name of folderNames(conversations)) folders.set(name, []);
  for (const conversation of conversations) folders.get(conversation.folder).push(conversation);
  return [...folders].flatMap(([name, inside]) => (name ? folder(name, inside, item, current) : inside.map(item)));
}

export const folderNames = (conversations) =>
  [...new Set(conversations.map((each) => each.folder).filter(Boolean))].sort((a, b) => a.localeCompare(b));

function folder(name, inside, item, current) {
  const node = h(
    "details",
    { class: "pz-chat-folder", open: !closed.has(name) || inside.some((each) => each.id === current) },
    h(
      "summary",
      {},
      icon("folder"),
      h("span", { class: "pz-grow pz-chat-title" }, name),
      h("span", { class: "pz-figure pz-chat-when" }, number(inside.length)),
    ),
    h("ul", {}, inside.map(item)),
  );
  node.addEventListener("toggle", () => {
    if (node.open) closed.delete(name);
    else closed.add(name);
    localStorage.setItem(OPEN_KEY, JSON.stringify([...closed]));
  });
  return h("li", {}, node);
}

/** Ask where a chat belongs; `move(name)` gets the folder, "" for none. */
export function openMoveDialog(conversation, names, move) {
  const field = h("input", {
    class: "pz-field",
    value: conversation.folder,
    maxlength: 100,
    list: "pz-folder-names",
    placeholder: t("chat_no_folder"),
    "aria-label": t("chat_folder"),
    autocomplete: "off",
  });
  const save = () => {
    dialog.close();
    const name = field.value.trim();
    if (name !== conversation.folder) move(name);
  };
  const dialog = openDialog({
    title: t("chat_move"),
    body: [
      h("label", { class: "pz-label" }, t("chat_folder"), field),
      h("datalist", { id: "pz-folder-names" }, names.map((name) => h("option", { value: name }))),
      h("p", { class: "pz-hint" }, t("chat_folder_hint")),
    ],
    actions: [button(t("cancel"), () => dialog.close()), button(t("chat_move_here"), save, { kind: "primary" })],
  });
}
