// The address of the Requests page: which request is open, and the list's filters. Knows nothing of how they are shown.
// Invariant: an address says all that the page needs to show the same again, and nothing else.

const RANGES = { "1h": 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400 };
const NAMES = ["model", "state", "source", "q", "range", "since", "until", "slow"];

export const RANGE_NAMES = Object.keys(RANGES);

/** {id, filters}: filters hold only what is set. */
export function readAddress() {
  const query = new URLSearchParams(location.search);
  const filters = {};
  for (const name of NAMES) if (query.get(name)) filters[name] = query.get(name);
  return { id: query.get("id"), filters };
}

export function addressOf({ id = null, filters = {} }) {
  const query = new URLSearchParams();
  if (id) query.set("id", id);
  for (const name of NAMES) if (filters[name]) query.set(name, filters[name]);
  const text = query.toString();
  return text ? `/requests?${text}` : "/requests";
}

/** The filters in the words of GET /api/requests. A range counts from now. */
export function queryOf(filters) {
  const query = {};
  for (const name of ["model", "state", "source", "since", "until"]) if (filters[name]) query[name] = filters[name];
  if (filters.q) query.id = filters.q;
  if (filters.slow) query.slow = "true";
  if (RANGES[filters.range]) query.since = (Date.now() / 1000 - RANGES[filters.range]).toFixed(3);
  return query;
}

/** Whether a row that was told live belongs on the list. */
export function fits(row, filters) {
  const { since, until } = queryOf(filters);
  const has = { model: row.model_id, state: row.state, source: row.source };
  return (
    Object.entries(has).every(([name, value]) => !filters[name] || filters[name] === value) &&
    (!filters.q || row.id.startsWith(plainId(filters.q))) &&
    (!filters.slow || row.slow === true) &&
    (!since || row.created_at >= Number(since)) &&
    (!until || row.created_at <= Number(until))
  );
}

/** A request's own id, also of its answer's. */
export function plainId(text) {
  return text
    .trim()
    .toLowerCase()
    .replace(/^(chatcmpl-|cmpl-|resp_|msg_|req_)/, "");
}
