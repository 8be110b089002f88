// The one WebSocket of a tab. Owns subscriptions, sequence numbers and reconnection; knows no topic's meaning.
// Invariant: after a reconnect every topic is asked for from its last sequence number on, and `onopen` listeners
// hear of it, so that a page can fetch anew what a restarted server no longer replays.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

class Live {
  #socket = null;
  #topics = new Map(); // topic -> {listeners, seq, last}
  #opened = new Set();
  #wait = FIRST_WAIT_MS;
  #connectedBefore = false;
  lastMessageAt = null;

  get connected() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /** Hear a topic's data; at once the newest, if there is one. Returns the way to stop. */
  subscribe(topic, listener) {
    const known = this.#topics.get(topic);
    const entry = known ?? { listeners: new Set(), seq: null, last: null };
    this.#topics.set(topic, entry);
    entry.listeners.add(listener);
    if (!known) this.#send({ subscribe: [topic] });
    else if (entry.last) listener(entry.last.data, entry.last);
    this.#connect();
    return () => this.#unsubscribe(topic, listener);
  }

  /** Called after each reconnect (not at the first connection) and when the server says that messages are missing. */
  onReconnect(listener) {
    this.#opened.add(listener);
    return () => this.#opened.delete(listener);
  }

  #unsubscribe(topic, listener) {
    const entry = this.#topics.get(topic);
    if (!entry?.listeners.delete(listener) || entry.listeners.size) return;
    this.#topics.delete(topic);
    this.#send({ unsubscribe: [topic] });
  }

  #connect() {
    if (this.#socket) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.#socket = new WebSocket(`${scheme}//${location.host}/api/live`);
    this.#socket.onopen = () => this.#onOpen();
    this.#socket.onmessage = (event) => this.#onMessage(JSON.parse(event.data));
    this.#socket.onclose = () => this.#onClose();
  }

  #onOpen() {
    this.#wait = FIRST_WAIT_MS;
    const since = {};
    for (const [topic, entry] of this.#topics) if (entry.seq !== null) since[topic] = entry.seq;
    this.#send({ subscribe: [...this.#topics.keys()], since });
    if (this.#connectedBefore) this.#tellReconnected();
    this.#connectedBefore = true;
  }

  #tellReconnected() {
    for (const listener of this.#opened) listener();
  }

  #onMessage(message) {
    this.lastMessageAt = Date.now();
    const entry = this.#topics.get(message.topic);
    if (!entry) return;
    entry.seq = message.seq;
    entry.last = message;
    if (message.gap) this.#tellReconnected();
    for (const listener of [...entry.listeners]) listener(message.data, message);
  }

  #onClose() {
    this.#socket = null;
    setTimeout(() => this.#connect(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(2 * this.#wait, LONGEST_WAIT_MS);
  }

  #send(message) {
    if (this.connected) this.#socket.send(JSON.stringify(message));
  }
}

export const live = new Live();
