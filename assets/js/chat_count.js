// How many tokens a message would make of the prompt, and what is left of the context. Counts a moment after the last
// change, off the page's own thread: the server renders the template and encodes. Invariant: what is shown belongs to
// what is written now, or says that it is being counted.

import { api } from "./api.js";
import { h, setText } from "./dom.js";
import { number, t } from "./i18n.js";

const PAUSE_MS = 350;

/** {element, ask(body | null), clear()}; `told(count)` gets every answer that still holds. */
export function createTokenCount(told) {
  const text = h("span", { class: "pz-figure pz-token-count" });
  let timer = 0;
  let asked = 0;

  async function count(body, number_) {
    try {
      const found = await api.countTokens(body);
      if (number_ !== asked) return;
      show(found);
      told(found);
    } catch {
      if (number_ === asked) clear(); // what is wrong with it is said when it is sent
    }
  }

  function show({ num_tokens: tokens, max_model_len: longest, room }) {
    const over = tokens >= longest;
    text.classList.toggle("pz-bad", over);
    text.title = t("chat_context_definition", { longest: number(longest) });
    setText(
      text,
      over
        ? t("chat_context_over", { tokens: number(tokens), longest: number(longest) })
        : t("chat_context_left", { tokens: number(tokens), room: number(room) }),
    );
  }

  function clear() {
    clearTimeout(timer);
    asked += 1;
    text.classList.remove("pz-bad");
    setText(text, "");
  }

  function ask(body) {
    clearTimeout(timer);
    asked += 1;
    const mine = asked;
    if (body === null) return clear();
    timer = setTimeout(() => count(body, mine), PAUSE_MS);
    return undefined;
  }

  return { element: text, ask, clear };
}
