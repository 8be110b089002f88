// "Will it fit": a prompt, or a number of tokens, held against the blocks that are free now.

import { fill, h, icon } from "./dom.js";
import { api } from "./api.js";
import { number, t } from "./i18n.js";

/** engine(): the engine's id or null. */
export function createFit(engine) {
  const prompt = h("textarea", { class: "pz-field pz-kv-prompt", rows: 3, placeholder: t("kv_fit_prompt_hint") });
  const tokens = h("input", { class: "pz-field", type: "number", min: 1, step: 1, placeholder: "–" });
  const answer = h("input", { class: "pz-field", type: "number", min: 0, step: 1, value: 256 });
  const result = h("div", { class: "pz-kv-fit-result", role: "status" });
  const check = h("button", { type: "submit", class: "pz-button pz-primary" }, t("kv_fit_check"));
  prompt.addEventListener("input", () => (tokens.disabled = prompt.value !== ""));
  const form = h(
    "form",
    { class: "pz-kv-fit-form", onsubmit: submit },
    label("kv_fit_prompt", prompt, "pz-kv-fit-text"),
    label("kv_fit_tokens", tokens),
    label("kv_fit_answer", answer),
    check,
  );

  async function submit(event) {
    event.preventDefault();
    const given = prompt.value ? { prompt: prompt.value } : tokens.value ? { num_tokens: Number(tokens.value) } : null;
    if (!given) return fill(result, problem(t("kv_fit_nothing")));
    check.disabled = true;
    try {
      const found = await api.fit(engine(), { ...given, max_tokens: Number(answer.value || 0) });
      fill(result, verdict(found));
    } catch (error) {
      fill(result, problem(error.status === 0 ? t("server_unreachable") : error.message));
    } finally {
      check.disabled = false;
    }
  }

  return h(
    "section",
    { class: "pz-card pz-kv-fit" },
    h("h2", {}, t("kv_fit")),
    h("p", { class: "pz-hint" }, t("kv_fit_what")),
    form,
    result,
  );
}

const label = (key, field, name = "") => h("label", { class: `pz-label ${name}` }, t(key), field);

const problem = (text) => h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, text));

const GOOD = { yes: "check", prompt_only: "info", not_now: "info", never: "warning" };

function verdict(found) {
  const reasons = found.reasons.map((name) => t(`kv_fit_reason_${name}`, values(found)));
  return [
    h(
      "p",
      { class: `pz-kv-fit-verdict pz-kv-fit-${found.fits}`, dataset: { fits: found.fits } },
      icon(GOOD[found.fits]),
      h("strong", {}, t(`kv_fit_is_${found.fits}`)),
      h("span", {}, reasons.join(" ")),
    ),
    h(
      "dl",
      { class: "pz-kv-facts pz-kv-fit-facts" },
      ["tokens", "needed", "free", "cached"].map((name) =>
        h(
          "div",
          { title: t(`kv_fit_${name}_definition`, values(found)) },
          h("dt", {}, t(`kv_fit_${name}_line`)),
          h("dd", { class: "pz-figure", dataset: { fit: name } }, t(`kv_fit_${name}_value`, values(found))),
        ),
      ),
    ),
  ];
}

function values(found) {
  const shown = Object.fromEntries(
    Object.entries(found).map(([name, value]) => [name, typeof value === "number" ? number(value) : value]),
  );
  if (found.num_cached_tokens === null) shown.num_cached_tokens = t("kv_fit_not_known");
  return shown;
}
