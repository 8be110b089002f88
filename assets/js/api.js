// The client of /api. Owns requests and errors; knows nothing of what is shown.

/** A refusal or failure, in the server's own words. `status` 0: the server could not be reached. */
export class ApiError extends Error {
  constructor(status, title, detail, remedy = "") {
    super([detail || title, remedy].filter(Boolean).join(" "));
    this.status = status;
  }
}

export async function call(method, path, body = undefined, signal = undefined) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "", String(error.message));
  }
  if (response.status === 204) return null;
  const data = await response.json().catch(() => ({}));
  if (!response.ok) {
    const said = data.detail ?? data.error?.message;
    throw new ApiError(response.status, data.title ?? response.statusText, said, data.remedy);
  }
  return data;
}

/** A query of the values that are there; lists with commas between. */
const query = (path, values) => {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return `${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
};

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
    const said = await response.json().catch(() => ({}));
    throw new ApiError(response.status, response.statusText, said.error?.message ?? said.detail);
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
  models: async () => (await call("GET", "/api/models")).models,
  estimate: (id, options, more = {}) => call("POST", at`/api/models/${id}/estimate`, { options, ...more }),
  load: (id, options = {}, more = {}) => call("POST", at`/api/models/${id}/load`, { options, ...more }),
  unload: (id, force = false, more = {}) => call("POST", at`/api/models/${id}/unload`, { force, ...more }),
  profiles: (id) => call("GET", at`/api/models/${id}/profiles`),
  saveProfile: (id, name, fields) => call("PUT", at`/api/models/${id}/profiles/${name}`, fields),
  deleteProfile: (id, name) => call("DELETE", at`/api/models/${id}/profiles/${name}`),
  engineNow: (id) => call("GET", at`/api/engines/${id}/now`),
  changeEngine: (id, fields) => call("PATCH", at`/api/engines/${id}`, fields),
  benchmark: (id, wish) => call("POST", at`/api/engines/${id}/benchmark`, wish),
  trainDrafter: (id, wish) => call("POST", at`/api/models/${id}/train-drafter`, wish),
  drafters: async (id) => (await call("GET", at`/api/models/${id}/drafters`)).drafters,
  startSelftest: (engine) => call("POST", at`/api/engines/${engine}/selftest`, {}),
  verdict: (engine) => call("GET", at`/api/engines/${engine}/verdict`),
  setSpeculation: (engine, change) => call("POST", at`/api/engines/${engine}/speculation`, change),
  selftest: (engine) => call("GET", at`/api/engines/${engine}/selftest`),
  blocks: (engine, asked = {}) => call("GET", `${at`/api/engines/${engine}/blocks`}?${new URLSearchParams(asked)}`),
  blockHistory: (engine) => call("GET", at`/api/engines/${engine}/blocks/history`),
  fit: (engine, body) => call("POST", at`/api/engines/${engine}/fit`, body),
  race: (engine, wish) => call("POST", at`/api/engines/${engine}/race`, wish),
  races: async (limit) => (await call("GET", at`/api/jobs?kind=race&limit=${limit}`)).jobs,
  trace: (request) => call("GET", at`/api/requests/${request}/trace`),
  answer,
  doctor: (id) => call("GET", at`/api/models/${id}/doctor`),
  quantize: (id, wish) => call("POST", at`/api/models/${id}/quantize`, wish),
  pull: (request) => call("POST", "/api/models/pull", request),
  deleteModel: (id) => call("DELETE", at`/api/models/${id}`),
  jobs: (limit = 30, before = null) =>
    call("GET", at`/api/jobs?limit=${limit}` + (before === null ? "" : at`&before=${before}`)),
  cancelJob: (id) => call("POST", at`/api/jobs/${id}/cancel`),
  engines: async () => (await call("GET", "/api/engines")).engines,
  requests: async (limit = 50) => (await call("GET", at`/api/requests?limit=${limit}`)).requests,
  requestPage: (query) => call("GET", `/api/requests?${new URLSearchParams(query)}`),
  request: (id) => call("GET", at`/api/requests/${id}`),
  cancelRequest: (id) => call("POST", at`/api/requests/${id}/cancel`),
  deleteRequestBody: (id) => call("DELETE", at`/api/requests/${id}/body`),
  events: async (limit = 50) => (await call("GET", at`/api/events?limit=${limit}`)).events,
  samples: (since, until, step) => call("GET", at`/api/samples?since=${since}&until=${until}&step_s=${step}`),
  figures: (wish) => call("GET", query("/api/samples", wish)),
  latencies: (wish) => call("GET", query("/api/samples/latencies", wish)),
  eventsOf: async (wish) => (await call("GET", query("/api/events", wish))).events,
  engineRuns: async (wish) => (await call("GET", query("/api/engine-runs", wish))).runs,
  system: () => call("GET", "/api/system"),
  conversations: async (query = "") =>
    (await call("GET", at`/api/conversations?q=${query}&limit=${200}`)).conversations,
  conversation: (id) => call("GET", at`/api/conversations/${id}`),
  createConversation: (fields) => call("POST", "/api/conversations", fields),
  patchConversation: (id, fields) => call("PATCH", at`/api/conversations/${id}`, fields),
  deleteConversation: (id) => call("DELETE", at`/api/conversations/${id}`),
  generate: (id, fields) => call("POST", at`/api/conversations/${id}/generate`, fields),
  abortAll: (engine) => call("POST", at`/api/engines/${engine}/abort`),
  settings: async () => (await call("GET", "/api/settings")).settings,
  saveSettings: (settings, expected) => call("PUT", "/api/settings", { settings, expected }),
  storage: () => call("GET", "/api/storage"),
  about: () => call("GET", "/api/about"),
  alertRules: () => call("GET", "/api/alert-rules"),
  addAlertRule: (rule) => call("POST", "/api/alert-rules", rule),
  changeAlertRule: (id, version, changes) => call("PATCH", at`/api/alert-rules/${id}`, { version, ...changes }),
  deleteAlertRule: (id, version) => call("DELETE", at`/api/alert-rules/${id}?version=${version}`),
  testAlertRule: (id) => call("POST", at`/api/alert-rules/${id}/test`),
  alerts: (limit, before = null) =>
    call("GET", before === null ? at`/api/alerts?limit=${limit}` : at`/api/alerts?limit=${limit}&before=${before}`),
  acknowledgeAlert: (id) => call("POST", at`/api/alerts/${id}/acknowledge`),
  acknowledgeAlerts: () => call("POST", "/api/alerts/acknowledge"),
  stop: (id) => call("POST", at`/api/conversations/${id}/stop`),
  countTokens: (fields) => call("POST", "/api/conversations/count", fields),
  exportUrl: (id, format) => at`/api/conversations/${id}/export?format=${format}`,
  importConversation: (text) => call("POST", "/api/conversations/import", { text }),
  presets: async () => (await call("GET", "/api/presets")).presets,
  addPreset: (fields) => call("POST", "/api/presets", fields),
  changePreset: (id, fields) => call("PUT", at`/api/presets/${id}`, fields),
  deletePreset: (id) => call("DELETE", at`/api/presets/${id}`),
};
