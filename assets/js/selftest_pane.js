// The self-test of an engine in a pane: how it goes, how the last one ended, its parts, and the button that runs it.

import { api } from "./api.js";
import { button, fill, h } from "./dom.js";
import { t } from "./i18n.js";
import { jobLine } from "./job_line.js";
import { allJobs, isRunning, watchJobs } from "./jobs.js";
import { problem, report } from "./selftest_dialog.js";
import { attempt } from "./toast.js";

/** engine: () => id or null. {element, refresh(), destroy()} */
export function createSelftestPane(engine) {
  const result = h(
    "div",
    { class: "pz-stack", "aria-live": "polite" },
    h("p", { class: "pz-hint" }, t("spec_loading")),
  );
  const progress = h("div", {});
  const run = button(t("selftest_run"), start, { iconName: "play" });
  const element = h(
    "div",
    { class: "pz-stack" },
    h("p", { class: "pz-hint" }, t("selftest_text")),
    progress,
    result,
    h("div", { class: "pz-actions" }, run),
  );
  let job = null;
  let ended = null; // the job whose end was looked at
  const leave = watchJobs(follow);

  async function start() {
    run.disabled = true;
    const started = await attempt(() => api.startSelftest(engine()));
    if (started) job = started.job_id;
    await refresh();
  }

  function follow() {
    const found = allJobs().find((each) => each.id === job);
    const running = found !== undefined && isRunning(found);
    fill(
      progress,
      found && (running || found.state !== "succeeded")
        ? jobLine(found, () => attempt(() => api.cancelJob(found.id)))
        : null,
    );
    if (found === undefined || running || ended === job) return;
    ended = job;
    refresh();
  }

  async function refresh() {
    const id = engine();
    if (id === null) {
      run.disabled = true;
      fill(result, h("p", { class: "pz-empty" }, t("spec_sentence_none")));
      return;
    }
    try {
      const found = await api.selftest(id);
      job = found.job_id ?? job;
      run.disabled = found.state === "running";
      fill(result, report(found));
    } catch (error) {
      if (error.status === undefined) throw error;
      fill(result, problem(error.status === 0 ? t("server_unreachable") : error.message));
    }
    follow();
  }

  refresh();
  return { element, refresh, destroy: leave };
}
