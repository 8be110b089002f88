// The tree of a conversation's messages: branches, versions, and the arrival of text. Pure data, no DOM.

const points = new WeakMap(); // message -> {field: its length in characters (code points, as the server counts)}

const lengthOf = (text) => {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
};

export class MessageTree {
  constructor(messages = []) {
    this.byId = new Map();
    this.children = new Map(); // parent id or null -> messages, oldest first
    for (const message of messages) this.put(message);
  }

  /** Add a message, or replace it in its place. */
  put(message) {
    const parent = message.parent_id ?? null;
    if (!this.children.has(parent)) this.children.set(parent, []);
    const family = this.children.get(parent);
    const place = family.findIndex((known) => known.id === message.id);
    if (place >= 0) family[place] = message;
    else family.push(message);
    this.byId.set(message.id, message);
  }

  /** From the first message down to `leafId`. */
  path(leafId) {
    const found = [];
    for (let message = this.byId.get(leafId); message; message = this.byId.get(message.parent_id)) found.push(message);
    return found.reverse();
  }

  /** The versions a message stands among, itself included: other answers to the same question, other edits of it. */
  versions(message) {
    return (this.children.get(message.parent_id ?? null) ?? [message]).filter((other) => other.role === message.role);
  }

  /** The newest message below a message: where choosing a version leads. */
  newestLeaf(id) {
    let leaf = id;
    for (let below = this.children.get(leaf); below?.length; below = this.children.get(leaf)) leaf = below.at(-1).id;
    return leaf;
  }

  /** Text that arrived for a field of `id` at `offset`. False: text before it is missing, so the conversation must be fetched anew. */
  extend(id, offset, text, field = "content") {
    const message = this.byId.get(id);
    if (!message) return false;
    if (!points.has(message)) points.set(message, {});
    const lengths = points.get(message);
    const have = lengths[field] ?? lengthOf(message[field]);
    if (offset > have) return false;
    const fresh = offset === have ? text : [...text].slice(have - offset).join("");
    message[field] += fresh;
    lengths[field] = have + lengthOf(fresh);
    return true;
  }
}
