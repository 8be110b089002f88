// The form of a prompt that is to be drafted: what is asked, how it is drawn, who drafts. Owns the fields and their
// values in this browser; knows nothing of what is done with them. Invariant: it never offers a proposer that the
// engine does not have.

import { button, fill, h } from "./dom.js";
import { t } from "./i18n.js";

const DEFAULTS = { chat: true, prompt: "", max_tokens: 96, temperature: 0, seed: "", proposer: "", k: "" };

/**
 * name: where its values are kept. plainChoice: whether "no drafts" may be chosen. extra: [[key, label, hint, {min, max,
 * value}]] of more whole numbers. start, stop: what the buttons do. startLabel: the text of the first.
 */
export function promptForm({
  name,
  plainChoice,
  maxTokens,
  extra = [],
  startLabel,
  startIcon,
  start,
  stop,
  stopLabel,
}) {
  const store = `pizarra.${name}`;
  const values = {
    ...DEFAULTS,
    ...Object.fromEntries(extra.map(([key, , , { value }]) => [key, value])),
    ...kept(store),
  };
  const keep = () => localStorage.setItem(store, JSON.stringify(values));

  const prompt = h("textarea", {
    class: "pz-field pz-board-prompt",
    rows: 5,
    placeholder: t("board_prompt_placeholder"),
    value: values.prompt,
    oninput: () => {
      values.prompt = prompt.value;
      keep();
    },
    onkeydown: (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      if (!go.disabled && !go.hidden) begin();
    },
  });
  const modes = [
    [true, t("board_mode_chat"), t("board_mode_chat_hint")],
    [false, t("board_mode_raw"), t("board_mode_raw_hint")],
  ].map(([chat, label, hint]) =>
    button(label, () => choose(chat), { kind: "segment", title: hint, "aria-pressed": String(values.chat === chat) }),
  );
  function choose(chat) {
    values.chat = chat;
    modes.forEach((node, place) => node.setAttribute("aria-pressed", String(chat === (place === 0))));
    keep();
  }

  const numberField = (key, label, hint, { min, max, step = 1, empty = false }) => {
    const field = h("input", {
      class: "pz-field pz-figure",
      type: "number",
      min,
      max,
      step,
      required: !empty,
      value: values[key],
      placeholder: empty ? t("board_auto") : null,
      oninput: () => {
        values[key] = field.value;
        keep();
      },
    });
    return [field, h("label", { class: "pz-label", title: hint }, label, field)];
  };
  const numbers = [
    numberField("max_tokens", t("max_tokens"), t("max_tokens_hint"), { min: 2, max: maxTokens }),
    numberField("temperature", t("temperature"), t("temperature_hint"), { min: 0, max: 10, step: "any" }),
    numberField("seed", t("seed"), t("seed_hint"), { min: 0, max: Number.MAX_SAFE_INTEGER, empty: true }),
    ...extra.map(([key, label, hint, range]) => numberField(key, label, hint, range)),
  ];
  const proposer = h("select", {
    class: "pz-field",
    onchange: () => {
      values.proposer = proposer.value;
      k.disabled = values.proposer === "off";
      keep();
    },
  });
  const [k, kLabel] = numberField("k", t("board_k"), t("board_k_hint"), { min: 1, max: 15, empty: true });
  const go = button(startLabel, begin, { kind: "primary", iconName: startIcon });
  const halt = button(stopLabel, stop, { iconName: "stop", hidden: true });
  const hint = h("p", { class: "pz-hint pz-grow" });
  const form = h(
    "form",
    { class: "pz-stack pz-board-form", onsubmit: (event) => event.preventDefault() },
    h(
      "div",
      { class: "pz-row pz-board-form-head" },
      h("span", { class: "pz-segments", role: "group", "aria-label": t("board_mode") }, modes),
      hint,
    ),
    h("label", { class: "pz-label" }, t("prompt"), prompt),
    h(
      "div",
      { class: "pz-board-fields" },
      numbers.slice(0, 3).map(([, label]) => label),
      h("label", { class: "pz-label", title: t("board_proposer_hint") }, t("board_proposer"), proposer),
      kLabel,
      numbers.slice(3).map(([, label]) => label),
    ),
    h("div", { class: "pz-actions" }, go, halt),
  );

  function begin() {
    if (!form.reportValidity()) return;
    if (!prompt.value.trim()) return prompt.focus();
    start(read());
  }

  const whole = (text) => (text === "" || text === null ? null : Number(text));
  const read = () => ({
    chat: values.chat,
    prompt: values.prompt,
    max_tokens: whole(values.max_tokens),
    temperature: Number(values.temperature),
    seed: whole(values.seed),
    proposer: values.proposer,
    k: values.proposer === "off" ? null : whole(values.k),
    ...Object.fromEntries(extra.map(([key]) => [key, whole(values[key])])),
  });

  let offered = null;
  return {
    element: form,
    /** The engine that will be asked, as /api/engines tells of it; null: none. */
    setEngine(engine) {
      go.disabled = !engine;
      fill(hint, engine ? engine.model_id : "");
      const names = (engine?.speculation?.proposers ?? []).map((each) => each.name);
      if (offered === names.join()) return;
      offered = names.join();
      const own = engine?.speculation?.proposer;
      const choices = [["", names.length ? t("board_proposer_own", { proposer: own }) : t("automatic")]];
      choices.push(...names.map((each) => [each, each]));
      if (plainChoice) choices.push(["off", t("board_proposer_off")]);
      fill(
        proposer,
        choices.map(([value, label]) => h("option", { value }, label)),
      );
      proposer.value = choices.some(([value]) => value === values.proposer) ? values.proposer : "";
      values.proposer = proposer.value;
      k.disabled = values.proposer === "off";
      k.max = engine?.options?.num_speculative_tokens ?? 15;
    },
    setBusy(busy) {
      go.hidden = busy;
      halt.hidden = !busy;
    },
    setPrompt(text, chat) {
      values.prompt = prompt.value = text;
      choose(chat);
    },
  };
}

function kept(store) {
  try {
    return JSON.parse(localStorage.getItem(store)) ?? {};
  } catch {
    return {};
  }
}
