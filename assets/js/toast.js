// Short notices at the edge of the screen. Errors stay until closed; the others leave by themselves.

import { h, icon, iconButton } from "./dom.js";
import { t } from "./i18n.js";

const SHOWN_MS = 7000;
const ICONS = { info: "info", ok: "check", error: "warning" };
let stack = null;

export function toast(message, kind = "info") {
  if (!stack?.isConnected) {
    stack = h("div", { class: "pz pz-toasts", role: "status", "aria-live": "polite" });
    document.body.append(stack);
  }
  const node = h(
    "div",
    { class: `pz-toast pz-toast-${kind}` },
    icon(ICONS[kind]),
    h("span", { class: "pz-grow" }, message),
  );
  node.append(iconButton("close", t("close"), () => node.remove()));
  stack.append(node);
  if (kind !== "error") setTimeout(() => node.remove(), SHOWN_MS);
}

/** Run an action; what the server refuses is shown in its own words. Returns undefined then. */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    if (error.status === undefined) throw error;
    toast(error.status === 0 ? t("server_unreachable") : error.message, "error");
    return undefined;
  }
}
