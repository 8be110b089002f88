// The playground's own calls. Owns their paths; errors are api.js's. Knows nothing of what is shown.

import { api, call } from "./api.js";

const engine = (id) => `/api/engines/${encodeURIComponent(id)}`;

export const playApi = {
  sampling: (id) => call("GET", `${engine(id)}/sampling`),
  inspect: (id, body, signal) => call("POST", `${engine(id)}/inspect`, body, signal),
  grammar: (id, body, signal) => call("POST", `${engine(id)}/grammar`, body, signal),
  tokenize: (body, signal) => call("POST", "/tokenize", body, signal),
  request: api.request,
  cancel: api.cancelRequest,
};

/** `later(action)` calls the last of a burst of actions after `wait` ms. */
export function debounced(wait) {
  let timer = null;
  return (action) => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
}
