// The list of conversations: new, import, search, open, rename, move, delete.

import { api } from "./api.js";
import { importButton } from "./chat_files.js";
import { folderNames, grouped, openMoveDialog } from "./chat_folders.js";
import { confirmDialog } from "./dialog.js";
import { button, fill, h, iconButton } from "./dom.js";
import { t, timeAgo } from "./i18n.js";
import { attempt } from "./toast.js";

const TYPING_PAUSE_MS = 250;

/** A conversation's own address. With the path: Gradio's pages have a <base> that a bare "?c=" would be joined to. */
export const addressOf = (id) => `${location.pathname}?c=${encodeURIComponent(id)}`;

export function createChatList({ open, start, renamed, deleted }) {
  let conversations = [];
  let current = null;
  let timer = 0;
  const items = h("ul", { class: "pz-chat-items" });
  const search = h("input", {
    class: "pz-field",
    type: "search",
    placeholder: t("search_chats"),
    "aria-label": t("search_chats"),
  });
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, TYPING_PAUSE_MS);
  });
  const element = h(
    "aside",
    { class: "pz-chat-list", "aria-label": t("conversations") },
    h(
      "div",
      { class: "pz-chat-list-head" },
      button(t("new_chat"), start, { iconName: "plus", kind: "primary" }),
      importButton((made) => refresh().then(() => open(made.id))),
    ),
    search,
    items,
  );

  async function refresh() {
    const found = await attempt(() => api.conversations(search.value.trim()));
    if (!found) return;
    conversations = found;
    draw();
  }

  function select(id) {
    current = id;
    draw();
  }

  /** Put what is newly known of one conversation into its place. */
  function put(summary) {
    const known = conversations.find((other) => other.id === summary.id);
    if (!known) return refresh();
    Object.assign(known, {
      title: summary.title,
      version: summary.version,
      updated_at: summary.updated_at,
      generating: summary.generating,
      folder: summary.folder,
    });
    return draw();
  }

  function draw() {
    const empty = h("li", { class: "pz-empty" }, search.value ? t("no_chats_found") : t("no_chats_yet"));
    fill(items, conversations.length ? grouped(conversations, item, current) : empty);
  }

  function item(conversation) {
    const title = conversation.title || t("untitled");
    const link = h(
      "a",
      { href: addressOf(conversation.id), "aria-current": conversation.id === current ? "true" : null },
      h("span", { class: "pz-chat-title" }, title),
      h("span", { class: "pz-chat-when" }, conversation.generating ? t("answering") : timeAgo(conversation.updated_at)),
    );
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      open(conversation.id);
    });
    const row = h("li", { class: "pz-chat-item" }, link);
    row.append(
      iconButton("pencil", t("rename"), () => rename(row, conversation)),
      iconButton("folder", t("chat_move"), () =>
        openMoveDialog(conversation, folderNames(conversations), (folder) => change(conversation, { folder })),
      ),
      iconButton("trash", t("delete"), () => remove(conversation)),
    );
    return row;
  }

  async function change(conversation, fields) {
    const changed = await attempt(() =>
      api.patchConversation(conversation.id, { version: conversation.version, ...fields }),
    );
    if (changed) renamed(changed);
    await refresh();
  }

  function rename(row, conversation) {
    const field = h("input", {
      class: "pz-field",
      value: conversation.title,
      "aria-label": t("rename"),
      maxlength: 200,
    });
    const finish = async (keep) => {
      field.onblur = null;
      const title = field.value.trim();
      if (keep && title && title !== conversation.title) {
        await change(conversation, { title });
      } else draw();
    };
    field.onblur = () => finish(true);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
    });
    fill(row, field);
    field.focus();
    field.select();
  }

  async function remove(conversation) {
    const sure = await confirmDialog(
      t("delete_chat"),
      t("delete_chat_text", { title: conversation.title || t("untitled") }),
      t("delete"),
    );
    if (!sure) return;
    const gone = await attempt(() => api.deleteConversation(conversation.id));
    if (gone === undefined) return;
    deleted(conversation.id);
    await refresh();
  }

  return { element, refresh, select, put };
}
