// Text files that go with a question: chosen, dropped or pasted, shown as chips with what they cost. Knows no API.
// Invariant: only what is text is taken, whole and unchanged; what is refused is said with its reason.

import { fill, h, icon, iconButton } from "./dom.js";
import { bytes, number, t } from "./i18n.js";
import { toast } from "./toast.js";

const MOST = 20;
const MOST_BYTES = 4 * 2 ** 20; // of all together: the server takes bodies of 8 MiB

/** {element, button, read(files), list(), replace(list), setTokens([n])}; `changed()` after every change. */
export function createAttachments(changed) {
  let files = []; // {name, text}
  const chips = h("ul", { class: "pz-attachments", "aria-label": t("chat_attachments"), hidden: true });
  const chooser = h("input", { type: "file", multiple: true, hidden: true, tabindex: -1 });
  const button = iconButton("attach", t("chat_attach"), () => chooser.click(), { class: "pz-icon-button pz-attach" });
  chooser.addEventListener("change", async () => {
    await read([...chooser.files]);
    chooser.value = ""; // the same file may be chosen again
  });

  async function read(chosen) {
    for (const file of chosen) {
      const problem = await take(file);
      if (problem) toast(`${file.name}: ${problem}`, "error");
    }
    draw();
    changed();
  }

  async function take(file) {
    if (files.length >= MOST) return t("chat_too_many_files", { n: MOST });
    const taken = files.reduce((sum, each) => sum + each.text.length, 0);
    if (taken + file.size > MOST_BYTES) return t("chat_files_too_large", { size: bytes(MOST_BYTES) });
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
      return t("chat_not_text");
    }
    if (text.includes("\0")) return t("chat_not_text");
    if (!text.trim()) return t("chat_empty_file");
    files = [...files.filter((each) => each.name !== file.name), { name: file.name.slice(0, 200), text }];
    return null;
  }

  function draw(tokens = []) {
    chips.hidden = !files.length;
    fill(
      chips,
      files.map((file, i) => {
        const cost = tokens[i] === undefined ? t("chat_counting") : t("chat_n_tokens", { n: number(tokens[i]) });
        const remove = () => {
          files = files.filter((other) => other !== file);
          draw();
          changed();
        };
        return h(
          "li",
          { class: "pz-attachment" },
          icon("attach"),
          h("span", { class: "pz-attachment-name", title: file.name }, file.name),
          h("span", { class: "pz-figure pz-attachment-cost" }, cost),
          iconButton("close", t("chat_remove_file", { name: file.name }), remove),
        );
      }),
    );
  }

  return {
    element: chips,
    button: h("span", {}, button, chooser),
    read,
    list: () => files,
    replace(list) {
      files = list;
      draw();
    },
    setTokens: draw,
  };
}

/** What was attached to a question, as it is read in the thread: each text behind its name. */
export function attachmentList(attachments) {
  if (!attachments?.length) return null;
  return h(
    "div",
    { class: "pz-attached" },
    attachments.map(({ name, text }) =>
      h(
        "details",
        { class: "pz-attached-file" },
        h("summary", {}, icon("attach"), h("span", { class: "pz-attachment-name" }, name)),
        h("pre", { tabindex: 0 }, text),
      ),
    ),
  );
}
