// The client of /api. Owns requests and errors; knows nothing of what is shown.

/** A refusal or failure, in the server's own words. `status` 0: the server could not be reached. */
export class ApiError extends Error {
  constructor(status, title, detail, remedy = "") {
    super([detail || title, remedy].filter(Boolean).join(" "));
    this.status = status;
  }
}

async function call(method, path, body = undefined) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    throw new ApiError(0, "", String(error.message));
  }
  if (response.status === 204) return null;
  const data = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, data.title ?? response.statusText, data.detail, data.remedy);
  return data;
}

/** The events of a streamed /v1 answer. Raises ApiError for a refusal, also for one that comes within the stream. */
async function* answer(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    throw new ApiError(0, "", String(error.message));
  }
  if (!response.ok) {
    const { error } = await response.json().catch(() => ({}));
    throw new ApiError(response.status, response.statusText, error?.message);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(500, "", event.error.message);
      yield event;
    }
  }
}

const at = (strings, ...values) => strings.reduce((path, part, i) => path + encodeURIComponent(values[i - 1]) + part);

export const api = {
  health: () => call("GET", "/health"),
  models: async () => (await call("GET", "/api/models")).models,
  estimate: (id, options) => call("POST", at`/api/models/${id}/estimate`, { options }),
  load: (id, options = {}) => call("POST", at`/api/models/${id}/load`, { options }),
  unload: (id, force = false) => call("POST", at`/api/models/${id}/unload`, { force }),
  drafters: async (id) => (await call("GET", at`/api/models/${id}/drafters`)).drafters,
  startSelftest: (engine) => call("POST", at`/api/engines/${engine}/selftest`, {}),
  selftest: (engine) => call("GET", at`/api/engines/${engine}/selftest`),
  race: (engine, wish) => call("POST", at`/api/engines/${engine}/race`, wish),
  races: async (limit) => (await call("GET", at`/api/jobs?kind=race&limit=${limit}`)).jobs,
  trace: (request) => call("GET", at`/api/requests/${request}/trace`),
  answer,
  cancelRequest: (id) => call("POST", at`/api/requests/${id}/cancel`),
  doctor: (id) => call("GET", at`/api/models/${id}/doctor`),
  quantize: (id, wish) => call("POST", at`/api/models/${id}/quantize`, wish),
  pull: (request) => call("POST", "/api/models/pull", request),
  deleteModel: (id) => call("DELETE", at`/api/models/${id}`),
  jobs: async (limit = 30) => (await call("GET", at`/api/jobs?limit=${limit}`)).jobs,
  cancelJob: (id) => call("POST", at`/api/jobs/${id}/cancel`),
  engines: async () => (await call("GET", "/api/engines")).engines,
  requests: async (limit = 50) => (await call("GET", at`/api/requests?limit=${limit}`)).requests,
  events: async (limit = 50) => (await call("GET", at`/api/events?limit=${limit}`)).events,
  samples: (since, until, step) => call("GET", at`/api/samples?since=${since}&until=${until}&step_s=${step}`),
  conversations: async (query = "") =>
    (await call("GET", at`/api/conversations?q=${query}&limit=${200}`)).conversations,
  conversation: (id) => call("GET", at`/api/conversations/${id}`),
  createConversation: (fields) => call("POST", "/api/conversations", fields),
  patchConversation: (id, fields) => call("PATCH", at`/api/conversations/${id}`, fields),
  deleteConversation: (id) => call("DELETE", at`/api/conversations/${id}`),
  generate: (id, fields) => call("POST", at`/api/conversations/${id}/generate`, fields),
  stop: (id) => call("POST", at`/api/conversations/${id}/stop`),
};
