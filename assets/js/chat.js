// The chat page: joins list, thread, composer and drawer over one open conversation.
// Invariant: the server owns every conversation; this page shows it, follows its live topic from the number that came
// with it, and on any doubt (a gap in the text, a stale version, a reconnect) fetches it anew instead of guessing. However
// late an answer of the server arrives, what happened after it is heard again: the page ends at what the server has.

import { api } from "./api.js";
import { createComposer } from "./chat_composer.js";
import { createDrawer } from "./chat_drawer.js";
import { openExportDialog } from "./chat_files.js";
import { addressOf, createChatList } from "./chat_list.js";
import { createThread } from "./chat_thread.js";
import { MessageTree } from "./chat_tree.js";
import { fill, h, iconButton, setText } from "./dom.js";
import { loadingEngine, servingEngines } from "./engine_state.js";
import { t } from "./i18n.js";
import { bringUp, bringingUp, stageText, watchJobs } from "./jobs.js";
import { live } from "./live.js";
import { offeredModel, onOfferedModel } from "./offered_model.js";
import { attempt, toast } from "./toast.js";

const CONFLICT = 409;
const NOT_FOUND = 404;

class ChatPage {
  #conversation = null; // null: a new chat that exists only once its first message is sent
  #tree = new MessageTree();
  #header = null;
  #busy = 0; // own requests on their way: their echo on the live topic needs no fetch
  #stopping = false;
  #loading = null; // {id, done}: the conversation being fetched and the promise of it
  #leaveTopic = () => {};

  constructor(element) {
    this.list = createChatList({
      open: (id) => this.open(id),
      start: () => this.startNew(),
      renamed: (conversation) => conversation.id === this.#conversation?.id && this.#adopt(conversation),
      deleted: (id) => id === this.#conversation?.id && this.startNew(),
    });
    this.thread = createThread({
      edit: (message, content) =>
        this.#generate({ content, parent_id: message.parent_id, attachments: message.attachments ?? [] }),
      goOn: (message) => this.#generate({ content: null, parent_id: message.id }),
      regenerate: (message) => this.#generate({ content: null, parent_id: message.parent_id }),
      choose: (message) => this.#patch({ active_leaf_id: this.#tree.newestLeaf(message.id) }),
    });
    this.composer = createComposer({
      send: (content, attachments) => this.#send(content, attachments),
      stop: () => this.#stop(),
      context: () =>
        this.#conversation
          ? { conversation_id: this.#conversation.id }
          : { system_prompt: this.drawer.values().system_prompt },
      load: () => bringUp(offeredModel(this.#header.default_model_id)),
    });
    this.drawer = createDrawer({ save: (fields) => this.#saveSettings(fields), close: () => this.#toggle("drawer") });
    this.#build(element);
    this.#listen();
  }

  #build(element) {
    this.root = element;
    this.title = h("h1", { class: "pz-chat-heading" });
    this.exporter = iconButton("download", t("chat_export"), () => openExportDialog(this.#conversation));
    const bar = h(
      "div",
      { class: "pz-chat-bar" },
      iconButton("list", t("conversations"), () => this.#toggle("list"), { class: "pz-icon-button pz-only-narrow" }),
      this.title,
      this.exporter,
      iconButton("sliders", t("chat_settings"), () => this.#toggle("drawer")),
    );
    const scrim = h("div", { class: "pz-scrim", onclick: () => delete this.root.dataset.open });
    fill(
      element,
      this.list.element,
      h("div", { class: "pz-chat-main" }, bar, this.thread.element, this.composer.element),
      this.drawer.element,
      scrim,
    );
  }

  #toggle(name) {
    if (this.root.dataset.open === name) delete this.root.dataset.open;
    else this.root.dataset.open = name;
  }

  #listen() {
    live.subscribe("header", (state) => {
      const could = this.#ready().length > 0;
      this.#header = state;
      if (could === this.#ready().length > 0) this.#drawComposer();
      else this.#draw();
    });
    watchJobs(() => this.#jobsChanged());
    onOfferedModel(() => this.#drawComposer());
    live.onReconnect(() => {
      this.list.refresh();
      this.#loading = null; // one asked for before may be of a server that is gone, or never come
      this.#reload();
    });
    addEventListener("popstate", () => this.#openFromAddress());
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#generating && !document.querySelector("dialog[open]")) this.#stop();
    });
    document.addEventListener("pz:new-chat", () => this.startNew());
    document.addEventListener("pz:branch", (event) => this.#stepVersion(event.detail.step, document.activeElement));
    this.list.refresh();
    this.#openFromAddress();
  }

  get #generating() {
    return this.#streaming() !== undefined;
  }

  #streaming() {
    return this.#tree.path(this.#conversation?.active_leaf_id).find((message) => message.state === "streaming");
  }

  #ready() {
    return servingEngines(this.#header).map((engine) => engine.model_id);
  }

  // ---- opening ----

  #openFromAddress() {
    const asked = new URLSearchParams(location.search);
    const id = asked.get("c");
    if (asked.has("model")) this.composer.prefer(asked.get("model"));
    return id ? this.open(id, { push: false }) : this.startNew({ push: false });
  }

  startNew({ push = true } = {}) {
    this.#leave();
    if (push) history.pushState(null, "", location.pathname);
    this.drawer.show({});
    this.composer.focus();
    this.#draw();
  }

  async open(id, { push = true } = {}) {
    await this.drawer.flushIfPending();
    this.#leave();
    if (push) history.pushState(null, "", addressOf(id));
    await this.#follow(id);
    const answer = this.#tree.path(this.#conversation?.active_leaf_id).findLast((message) => message.model_id);
    if (answer && this.#conversation.id === id) this.composer.prefer(answer.model_id);
  }

  #leave() {
    this.#leaveTopic();
    this.#leaveTopic = () => {};
    this.#conversation = null;
    this.#tree = new MessageTree();
    this.#stopping = false;
    delete this.root.dataset.open;
    this.list.select(null);
  }

  async #follow(id) {
    this.#conversation = { id, active_leaf_id: null, title: "" };
    this.list.select(id);
    await this.#reload();
  }

  /** One request at a time: what happens while it is on its way is heard after it. */
  #reload() {
    const id = this.#conversation?.id;
    if (!id) return undefined;
    if (this.#loading?.id !== id) {
      const loading = { id, done: null };
      loading.done = this.#load(id).finally(() => {
        if (this.#loading === loading) this.#loading = null;
      });
      this.#loading = loading;
    }
    return this.#loading.done;
  }

  async #load(id) {
    try {
      const conversation = await api.conversation(id);
      if (this.#conversation?.id === id) this.#adopt(conversation);
    } catch (error) {
      if (error.status !== NOT_FOUND) return attempt(() => Promise.reject(error));
      if (this.#conversation?.id !== id) return;
      toast(t("chat_gone"), "error");
      history.replaceState(null, "", location.pathname);
      this.startNew({ push: false });
    }
  }

  #adopt(conversation) {
    const { id, live_seq: since } = conversation;
    this.#leaveTopic();
    this.#conversation = conversation;
    this.#tree = new MessageTree(conversation.messages);
    this.drawer.show(conversation);
    this.list.put(conversation);
    this.#draw();
    this.#leaveTopic = live.subscribe(`conversation:${id}`, (event) => this.#onEvent(id, event), since);
  }

  // ---- the live topic ----

  #onEvent(id, event) {
    if (this.#conversation?.id !== id) return;
    switch (event.type) {
      case "message.created":
        if (!this.#tree.byId.has(event.message.id)) this.#tree.put(event.message);
        if (event.message.parent_id === this.#conversation.active_leaf_id)
          this.#conversation.active_leaf_id = event.message.id;
        return this.#draw();
      case "message.delta":
        return this.#onText(event, "content");
      case "message.reasoning_delta":
        return this.#onText(event, "reasoning_content");
      case "message.done":
        this.#tree.put(event.message);
        this.#stopping = false;
        return this.#draw();
      case "conversation.updated":
        return this.#onSummary(event.conversation);
      default:
        return undefined;
    }
  }

  #onText(event, field) {
    if (this.#tree.extend(event.message_id, event.offset, event.text, field)) this.thread.textArrived(event.message_id);
    else this.#reload();
  }

  #onSummary(summary) {
    this.list.put(summary);
    if (this.#busy || summary.version === this.#conversation.version) {
      Object.assign(this.#conversation, summary);
      return this.#draw();
    }
    return this.#reload();
  }

  // ---- actions ----

  /** To the version before or after, of the message that has the focus, else of the last one that has several. */
  #stepVersion(by, focused) {
    const path = this.#tree.path(this.#conversation?.active_leaf_id);
    const within = focused.closest("[data-id]")?.dataset.id;
    const several = (message) => this.#tree.versions(message).length > 1;
    const message = path.find((each) => each.id === within && several(each)) ?? path.findLast(several);
    if (!message || this.#generating) return;
    const versions = this.#tree.versions(message);
    const other = versions[versions.findIndex((each) => each.id === message.id) + by];
    if (other) this.#patch({ active_leaf_id: this.#tree.newestLeaf(other.id) });
  }

  async #send(content, attachments = []) {
    await this.drawer.flushIfPending();
    if (!this.#conversation) {
      const created = await attempt(() => api.createConversation(this.drawer.values()));
      if (!created) return false;
      history.pushState(null, "", addressOf(created.id));
      await this.#follow(created.id);
    }
    this.thread.toEnd();
    return this.#generate({ content, attachments });
  }

  async #generate(fields) {
    const conversation = this.#conversation;
    const model = this.composer.model();
    const answer = await this.#guarded(() =>
      api.generate(conversation.id, {
        version: conversation.version,
        ...fields,
        ...(model ? { model_id: model } : {}),
      }),
    );
    if (!answer || this.#conversation !== conversation) return Boolean(answer);
    if (!this.#tree.byId.has(answer.assistant_message.id)) {
      // the live topic has not told it yet; where it has, it may have told of the end as well, which this must not undo
      if (answer.user_message) this.#tree.put(answer.user_message);
      this.#tree.put(answer.assistant_message);
      Object.assign(conversation, answer.conversation, { active_leaf_id: answer.assistant_message.id });
      this.list.put(answer.conversation);
      this.#draw();
    }
    this.thread.toEnd();
    return true;
  }

  async #patch(fields) {
    const { id, version } = this.#conversation;
    const changed = await this.#guarded(() => api.patchConversation(id, { version, ...fields }));
    if (changed && this.#conversation?.id === id) this.#adopt(changed);
    return Boolean(changed);
  }

  async #saveSettings(fields) {
    return this.#conversation ? this.#patch(fields) : true;
  }

  /** A stale tab must never overwrite: on a conflict the server's state is shown, with a note. */
  async #guarded(action) {
    this.#busy += 1;
    try {
      return await action();
    } catch (error) {
      await attempt(() => Promise.reject(error));
      if (error.status === CONFLICT) {
        toast(t("chat_reloaded"));
        await this.#reload();
      }
      return undefined;
    } finally {
      this.#busy -= 1;
    }
  }

  async #stop() {
    if (this.#stopping) return;
    this.#stopping = true;
    this.#draw();
    if ((await attempt(() => api.stop(this.#conversation.id))) === undefined) this.#stopping = false;
    this.#draw();
  }

  // ---- drawing ----

  #draw() {
    const ready = this.#ready().length > 0;
    if (!this.#generating) this.#stopping = false;
    if (this.#tree.byId.size) this.thread.show(this.#conversation, this.#tree, ready && !this.#generating);
    else this.thread.showEmpty(this.#welcome());
    setText(this.title, this.#conversation?.title || t("new_chat"));
    this.exporter.hidden = !this.#tree.byId.size;
    this.#drawComposer();
  }

  #bringingUp() {
    return bringingUp(loadingEngine(this.#header)?.model_id ?? offeredModel(this.#header?.default_model_id));
  }

  #jobsChanged() {
    const words = this.thread.element.querySelector("[data-welcome]");
    if (words) setText(words, this.#welcomeText());
    this.#drawComposer();
  }

  #welcomeText() {
    if (this.#ready().length) return t("chat_welcome_text");
    return t(this.#bringingUp() ? "chat_welcome_loading" : "chat_welcome_no_model");
  }

  #drawComposer() {
    const ready = this.#ready();
    const job = this.#bringingUp();
    this.composer.show({
      conversation: this.#conversation?.id ?? null,
      generating: this.#generating,
      stopping: this.#stopping,
      ready: ready.length > 0,
      models: ready,
      loading: job ? t("loading_model", { model: job.subject, stage: stageText(job) }) : null,
      defaultModel: offeredModel(this.#header?.default_model_id),
    });
  }

  #welcome() {
    return h(
      "div",
      { class: "pz-welcome" },
      h("img", { src: "/assets/icons/favicon.svg", alt: "", width: 56, height: 56 }),
      h("h2", {}, t("chat_welcome")),
      h("p", { dataset: { welcome: "" } }, this.#welcomeText()),
    );
  }
}

export function mount(element) {
  return new ChatPage(element);
}
