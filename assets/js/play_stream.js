// What the playground reads of streamed answers: their chunks, and the text of tokens. Knows nothing of what is shown.

import { api } from "./api.js";

/** The chunks of an answer. Throws an ApiError; an aborted signal ends it quietly. */
export async function* chunksOf(path, body, signal) {
  try {
    yield* api.answer(path, body, signal);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** The text that a token's bytes complete, one token after the other: a character may take several tokens. */
export function tokenTexts() {
  const decoder = new TextDecoder();
  return (bytes) => decoder.decode(new Uint8Array(bytes), { stream: true });
}

const encoder = new TextEncoder();

/** The bytes of a token as /v1/completions and /tokenize spell it. */
export function spelledBytes(spelled) {
  if (!/^bytes:(\\x[0-9a-f]{2})+$/.test(spelled)) return [...encoder.encode(spelled)];
  return spelled
    .slice(8)
    .split("\\x")
    .map((pair) => parseInt(pair, 16));
}
