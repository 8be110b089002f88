// The one WebSocket of a tab. Owns subscriptions, sequence numbers and reconnection; knows no topic's meaning.
// Invariants: a listener hears each number of its topic once, in order and without a hole; after a reconnect every topic
// is asked for from its last number on, and `onReconnect` listeners hear of it, as they do of what the server no longer
// has, so that a page can fetch it anew.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

class Live {
  #socket = null;
  #topics = new Map(); // topic -> {listeners, seq, last, askedFrom}
  #opened = new Set();
  #wait = FIRST_WAIT_MS;
  #connectedBefore = false;
  lastMessageAt = null;

  get connected() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /**
   * Hear a topic's data; at once the newest, if there is one. Returns the way to stop. `since`: for a topic without
   * other listeners, the number that came with a state read elsewhere; what was said after it is heard first.
   */
  subscribe(topic, listener, since = null) {
    const known = this.#topics.get(topic);
    const entry = known ?? { listeners: new Set(), seq: since, last: null, askedFrom: null };
    this.#topics.set(topic, entry);
    entry.listeners.add(listener);
    if (!known) this.#ask([topic]);
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
    this.#ask([...this.#topics.keys()]);
    if (this.#connectedBefore) this.#tellReconnected();
    this.#connectedBefore = true;
  }

  #tellReconnected() {
    for (const listener of this.#opened) listener();
  }

  #onMessage(message) {
    this.lastMessageAt = Date.now();
    const entry = this.#topics.get(message.topic);
    if (!entry || !this.#isNext(entry, message)) return;
    entry.seq = message.seq;
    if (message.gap) this.#tellReconnected();
    if (message.data === null) return; // it says only that something is missing
    entry.last = message;
    for (const listener of [...entry.listeners]) listener(message.data, message);
  }

  /** Not so: what is known already, and what an earlier subscription still sends from beyond the place asked for. */
  #isNext(entry, message) {
    if (message.gap || entry.seq === null || message.seq === entry.seq + 1) return true;
    if (message.seq > entry.seq && entry.askedFrom !== entry.seq) {
      entry.askedFrom = entry.seq;
      this.#ask([message.topic]);
    }
    return false;
  }

  #ask(topics) {
    const since = {};
    for (const topic of topics) if (this.#topics.get(topic).seq !== null) since[topic] = this.#topics.get(topic).seq;
    this.#send({ subscribe: topics, since });
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
