// A request to /v1 whose answer is streamed. Owns the event stream and its errors; knows nothing of what is shown.

/** The chunks of an answer. Throws an Error in the server's words; an aborted signal ends it quietly. */
export async function* chunksOf(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.ok) throw new Error(await refusal(response));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
        yield chunk;
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

async function refusal(response) {
  const said = await response.json().catch(() => ({}));
  return said.error?.message ?? said.detail ?? `${response.status} ${response.statusText}`;
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
