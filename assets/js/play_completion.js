// Raw completion: a text, and the model goes on from it exactly as it stands. Also where a stored request is replayed.

import { fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { playApi } from "./play_api.js";
import { playEngine } from "./play_engine.js";
import { hand, replayOf } from "./play_replay.js";
import { createRun, replayNotice, said } from "./play_run.js";
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
  const prepare = () => {
    const { body, problems } = sampling.read();
    const wanted = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    return { body: { model: playEngine()?.model_id, prompt: prompt.value, logprobs: 0, ...body, ...wanted }, problems };
  };
  run = createRun({
    path: PATH,
    prepare,
    verb: t("complete"),
    empty: t("completion_empty"),
    before: () => prompt.value,
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
    const found = replayOf(request);
    if (!found) return say("info", t("play_replay_no_body"));
    if (found.messages) return hand(found);
    prompt.value = found.prompt;
    sampling.fill(found.fields);
    fill(notice, replayNotice(found));
    run.changed();
  }

  const say = (name, text) => fill(notice, said(name, text));

  return {
    destroy() {
      sampling.destroy();
      run.destroy();
    },
  };
}
