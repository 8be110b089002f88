// Where a board's steps come from: a traced request that is started here, or one that exists.
// Owns the request, the live topic and the trace as it is known; knows nothing of how it is shown.
// Invariant: entries are in the order of the text, each step once; after the end they are the server's own.

import { api } from "./api.js";
import { live } from "./live.js";

/** Listen to a request's trace. listener({entries, dropped, dropped_text, totals, ended, finish_reason, text}). */
export function followTrace(id, listener, onError) {
  let steps = new Map(); // position -> entry
  let known = { dropped: 0, dropped_text: "", totals: null, ended: false, finish_reason: null };
  let closed = false;
  const tell = () => {
    const entries = [...steps.values()].sort((a, b) => a.position - b.position);
    const text = known.dropped_text + entries.map((entry) => entry.text).join("");
    listener({ ...known, entries, text, totals: known.totals ?? totalsOf(entries) });
  };
  const read = async () => {
    try {
      const trace = await api.trace(id);
      if (closed) return;
      const { entries, ...rest } = trace;
      const later = rest.ended
        ? []
        : [...steps.values()].filter((entry) => entry.position > (entries.at(-1)?.position ?? -1));
      steps = new Map([...entries, ...later].map((entry) => [entry.position, entry]));
      known = { ...rest, totals: rest.ended ? rest.totals : null };
      tell();
      if (rest.ended) close();
    } catch (error) {
      if (!closed) onError(error);
    }
  };
  const stop = live.subscribe(`trace:${id}`, (entry) => {
    if (entry.ended) return read();
    steps.set(entry.position, entry);
    tell();
  });
  const stopReconnect = live.onReconnect(read);
  const close = () => {
    closed = true;
    stop();
    stopReconnect();
  };
  read();
  return close;
}

/** Sums over steps while they come; the server's own are shown once it has ended. */
function totalsOf(entries) {
  const sum = (of) => entries.reduce((total, entry) => total + of(entry), 0);
  return {
    steps: entries.length,
    drafts: sum((entry) => (entry.drafted.length ? 1 : 0)),
    drafted: sum((entry) => entry.drafted.length),
    accepted: sum((entry) => entry.num_accepted),
    draft_ms: sum((entry) => entry.draft_ms),
    verify_ms: sum((entry) => entry.verify_ms),
  };
}

/** Start a traced request. Resolves with the whole answer's text, null where it is not all plain text. */
export async function startTraced(engine, wish, { signal, onId }) {
  const fields = {
    model: engine.model_id,
    max_tokens: wish.max_tokens,
    temperature: wish.temperature,
    stream: true,
    trace: true,
    speculation: speculationOf(wish),
    ...(wish.seed === null ? {} : { seed: wish.seed }),
    ...(wish.chat ? { messages: [{ role: "user", content: wish.prompt }] } : { prompt: wish.prompt }),
  };
  let text = "";
  let id = null;
  let isPlain = true;
  for await (const event of api.answer(wish.chat ? "/v1/chat/completions" : "/v1/completions", fields, signal)) {
    if (id === null && event.id) onId((id = event.id.replace(/^(chatcmpl|cmpl)-/, "")));
    const choice = event.choices?.[0];
    text += choice?.delta?.content ?? choice?.text ?? "";
    isPlain &&= !choice?.delta?.reasoning_content && !choice?.delta?.tool_calls;
  }
  return isPlain ? text : null;
}

function speculationOf({ proposer, k }) {
  if (proposer === "off") return false;
  const wish = { ...(proposer ? { proposer } : {}), ...(k ? { num_speculative_tokens: k } : {}) };
  return Object.keys(wish).length ? wish : true;
}
