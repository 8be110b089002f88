// The thread of one conversation: keeps a view per message, follows the end while one reads there.

import { button, fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { createMessageView, scheduleText } from "./chat_message.js";

const SHOWN_AT_ONCE = 60; // older messages are drawn when asked for: a long chat stays quick
const NEAR_END_PX = 90;

export function createThread(actions) {
  const list = h("div", { class: "pz-thread-list" });
  const element = h("section", { class: "pz-thread", "aria-label": t("thread"), tabindex: -1 }, list);
  const views = new Map();
  let shown = SHOWN_AT_ONCE;
  let conversationId;

  const nearEnd = () => element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
  const toEnd = () => {
    element.scrollTop = element.scrollHeight;
  };

  function show(conversation, tree, canGenerate) {
    const follow = conversation.id !== conversationId || nearEnd();
    if (conversation.id !== conversationId) {
      views.clear();
      shown = SHOWN_AT_ONCE;
      conversationId = conversation.id;
    }
    const path = tree.path(conversation.active_leaf_id);
    const visible = path.slice(-shown);
    const models = new Set(path.map((message) => message.model_id).filter(Boolean));
    const nodes = visible.map((message) => {
      if (!views.has(message.id)) views.set(message.id, createMessageView(message));
      const view = views.get(message.id);
      view.update(message, {
        versions: tree.versions(message),
        canGenerate,
        actions,
        nameModel: models.size > 1,
      });
      return view.element;
    });
    const earlier =
      visible.length < path.length
        ? button(t("show_earlier", { n: path.length - visible.length }), () => {
            shown += SHOWN_AT_ONCE;
            show(conversation, tree, canGenerate);
          })
        : null;
    place(list, [earlier, ...nodes].filter(Boolean));
    if (follow) toEnd();
  }

  function textArrived(id) {
    const view = views.get(id);
    if (!view) return;
    const follow = nearEnd();
    scheduleText(view, () => follow && toEnd());
  }

  function showEmpty(node) {
    views.clear();
    conversationId = undefined;
    fill(list, node);
  }

  return { element, show, showEmpty, textArrived, toEnd };
}

/** Bring the children into this order, touching only what differs: what one reads or edits stays in place. */
function place(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, i) => {
    if (parent.childNodes[i] !== node) parent.insertBefore(node, parent.childNodes[i] ?? null);
  });
}
