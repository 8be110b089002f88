// Modal dialogs on the browser's own <dialog>: focus stays inside, Esc closes, Enter in a field does the main action,
// the rest of the page is inert.

import { button, fill, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";

/** Open a dialog; `actions` stand at its foot. Returns {close}. */
export function openDialog({ title, body, actions = [], wide = false, onclose = () => {} }) {
  const titleId = `pz-dialog-${Math.random().toString(36).slice(2)}`;
  const node = h("dialog", { class: `pz pz-dialog${wide ? " pz-dialog-wide" : ""}`, "aria-labelledby": titleId });
  const close = () => node.close();
  fill(
    node,
    h("header", { class: "pz-dialog-head" }, h("h2", { id: titleId }, title), iconButton("close", t("close"), close)),
    h("div", { class: "pz-dialog-body" }, body),
    actions.length ? h("footer", { class: "pz-dialog-foot" }, actions) : null,
  );
  node.addEventListener("close", () => {
    node.remove();
    onclose();
  });
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || !event.target.matches("input")) return;
    event.preventDefault();
    node.querySelector(".pz-dialog-foot .pz-primary")?.click();
  });
  node.addEventListener("mousedown", (event) => event.target === node && close());
  document.body.append(node);
  node.showModal();
  node.querySelector(".pz-dialog-body :is(input, select)")?.focus();
  return { close, node };
}

/** Ask before something that cannot be undone. */
export function confirmDialog(title, text, label) {
  return new Promise((resolve) => {
    let answer = false;
    const sure = () => {
      answer = true;
      dialog.close();
    };
    const dialog = openDialog({
      title,
      body: h("p", {}, text),
      actions: [button(t("cancel"), () => dialog.close()), button(label, sure, { kind: "danger" })],
      onclose: () => resolve(answer),
    });
  });
}
