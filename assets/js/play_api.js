// The playground's own calls. Owns their paths; errors are api.js's. Knows nothing of what is shown.

import { ApiError } from "./api.js";

async function call(path, body = undefined, signal = undefined) {
  let response;
  try {
    const headers = body === undefined ? {} : { "Content-Type": "application/json" };
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "", String(error.message));
  }
  const said = await response.json().catch(() => ({}));
  if (response.ok) return said;
  throw new ApiError(response.status, said.title ?? response.statusText, said.detail ?? said.error?.message, said.remedy);
}

const engine = (id) => `/api/engines/${encodeURIComponent(id)}`;

export const playApi = {
  sampling: (id) => call(`${engine(id)}/sampling`),
  inspect: (id, body, signal) => call(`${engine(id)}/inspect`, body, signal),
  grammar: (id, body, signal) => call(`${engine(id)}/grammar`, body, signal),
  tokenize: (body, signal) => call("/tokenize", body, signal),
  detokenize: (body) => call("/detokenize", body),
  request: (id) => call(`/api/requests/${encodeURIComponent(id)}`),
  cancel: (id) => call(`/api/requests/${encodeURIComponent(id)}/cancel`, {}),
};

/** `later(action)` calls the last of a burst of actions after `wait` ms. */
export function debounced(wait) {
  let timer = null;
  return (action) => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
}
