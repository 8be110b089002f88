// Raw completion: a text, and the model goes on from it exactly as it stands. Also where a stored request is replayed.

import { fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { playApi } from "./play_api.js";
import { playEngine } from "./play_engine.js";
import { createRun } from "./play_run.js";
import { createSampling } from "./play_sampling.js";

const PATH = "/v1/completions";
const GIVEN = { max_tokens: 128, logprobs: 0 };

export function mount(element) {
  let run = null;
  const notice = h("div", { class: "pz-play-notice" });
  const prompt = h("textarea", {
    class: "pz-field pz-play-mono pz-play-prompt",
    id: "pz-play-prompt",
    rows: 8,
    placeholder: t("prompt_placeholder"),
    oninput: () => run.changed(),
  });
  const sampling = createSampling({ given: GIVEN, onChange: () => run?.changed() });
  let ids = null; // a replayed prompt that was token ids
  prompt.addEventListener("input", () => (ids = null));
  const prepare = () => {
    const { body, problems } = sampling.read();
    const wanted = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    return { body: { model: playEngine()?.model_id, prompt: ids ?? prompt.value, logprobs: 0, ...body, ...wanted }, problems };
  };
  run = createRun({
    path: PATH,
    prepare,
    verb: t("complete"),
    empty: t("completion_empty"),
    before: () => prompt.value,
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run.run();
  });
  fill(
    element,
    h(
      "div",
      { class: "pz-play-columns" },
      h(
        "div",
        { class: "pz-card pz-play-form" },
        notice,
        h("label", { class: "pz-label" }, t("prompt"), prompt),
        sampling.element,
      ),
      h("div", { class: "pz-card pz-play-out" }, run.element),
    ),
  );
  const replayed = new URLSearchParams(location.search).get("replay");
  if (replayed) replay(replayed);

  async function replay(id) {
    let request;
    try {
      request = await playApi.request(id);
    } catch (error) {
      say("warning", error.status === 404 ? t("play_replay_gone", { id }) : error.message);
      return;
    }
    const body = request.body;
    if (!body) return say("info", t("play_replay_no_body"));
    if (Array.isArray(body.messages)) {
      sessionStorage.setItem("pizarra.replay", JSON.stringify(body));
      dispatchEvent(new CustomEvent("pizarra:playground", { detail: { tab: "chat" } }));
      return;
    }
    const given = body.prompt ?? body.prompt_token_ids;
    const text = await textOf(given);
    if (text === null) return say("warning", t("play_replay_several"));
    prompt.value = text;
    ids = typeof given === "string" ? null : given.flat();
    sampling.fill({ ...body, seed: body.seed ?? request.seed });
    say("check", t("play_replayed", { id }));
    run.changed();
  }

  /** The prompt as text; null where it is not one prompt. */
  async function textOf(given) {
    if (typeof given === "string") return given;
    if (!Array.isArray(given)) return null;
    if (given.length === 1 && typeof given[0] === "string") return given[0];
    const tokens = given.length === 1 && Array.isArray(given[0]) ? given[0] : given;
    if (!tokens.every(Number.isInteger)) return null;
    const said = await playApi.detokenize({ tokens, model: playEngine()?.model_id }).catch(() => null);
    return said ? said.prompt : "";
  }

  const say = (name, text) => fill(notice, h("p", { class: "pz-play-said" }, icon(name), h("span", {}, text)));

  return {
    destroy() {
      sampling.destroy();
      run.destroy();
    },
  };
}
