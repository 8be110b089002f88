// Chats as files: the dialog that saves one, and the way a file becomes a chat.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { h, icon, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { attempt } from "./toast.js";

const FORMATS = ["md", "json"];

/** Offer both formats; the browser saves what the server sends. */
export function openExportDialog(conversation) {
  const choice = (format) =>
    h(
      "a",
      {
        class: "pz-export-choice",
        href: api.exportUrl(conversation.id, format),
        download: "",
        onclick: () => dialog.close(),
      },
      icon("download"),
      h("span", {}, h("strong", {}, t(`chat_export_${format}`)), h("small", {}, t(`chat_export_${format}_text`))),
    );
  const dialog = openDialog({ title: t("chat_export"), body: h("div", { class: "pz-export" }, FORMATS.map(choice)) });
}

/** A button that makes a chat of a file; `opened(conversation)` gets it. */
export function importButton(opened) {
  const chooser = h("input", { type: "file", accept: ".json,.md,.markdown,.txt", hidden: true, tabindex: -1 });
  chooser.addEventListener("change", async () => {
    const [file] = chooser.files;
    chooser.value = "";
    if (!file) return;
    const text = await file.text();
    const made = await attempt(() => api.importConversation(text));
    if (made) opened(made);
  });
  return h("span", {}, iconButton("upload", t("chat_import"), () => chooser.click()), chooser);
}
