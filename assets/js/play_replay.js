// From a stored request (GET /api/requests/{id}) to what the playground's forms take. Owns the translation; knows nothing
// of forms. Invariant: what cannot be carried over is named.

import { GROUPS } from "./play_fields.js";

const KNOWN = new Set(Object.values(GROUPS).flatMap((fields) => Object.keys(fields)));
const AS_TOKENS = new Set(["bad_words", "dry_sequence_breakers"]); // stored as token ids, typed as texts

/** {prompt, messages, fields, leftOut} of a stored body, or null where none was kept. */
export function replayOf(request) {
  const { body } = request;
  if (!body) return null;
  const fields = {};
  const leftOut = body.truncated ? ["…"] : [];
  for (const [name, value] of Object.entries(body.sampling ?? {})) {
    if (value === null || (Array.isArray(value) && value.length === 0)) continue;
    if (KNOWN.has(name) && !AS_TOKENS.has(name)) fields[name] = value;
    else leftOut.push(name);
  }
  return { id: request.id, prompt: body.prompt, messages: body.messages ?? null, fields, leftOut };
}

/** What is kept of a replay while another tab opens. */
const WAITING = "pizarra.replay";

export function hand(replay) {
  sessionStorage.setItem(WAITING, JSON.stringify(replay));
  dispatchEvent(new CustomEvent("pizarra:playground", { detail: { tab: "chat" } }));
}

export function taken() {
  const stored = sessionStorage.getItem(WAITING);
  sessionStorage.removeItem(WAITING);
  return stored ? JSON.parse(stored) : null;
}
