// Overview's card about the server itself: how long it is up, how often engines came and went and why, room, versions.
// Owns asking for it once a minute. What is not known says so.

import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { factList } from "./fact_list.js";
import { bytes, clock, number, percent, seconds, t, timeAgo, word } from "./i18n.js";
import { live } from "./live.js";
import { attempt } from "./toast.js";

const PERIOD_MS = 60_000;
const DAY_S = 86_400;
const SHOWN_RUNS = 4;
const FEW = 0.05; // of a disk: little room
const CAUSES = new Set(["operator", "idle", "evicted", "crash", "shutdown", "unloaded", "the server ended"]);

const causeText = (cause) =>
  CAUSES.has(cause) ? word("ovcause", cause.replaceAll(" ", "_")) : (cause ?? t("ov_cause_unknown"));

/** {element, show(header), destroy()}; `header`: the live state, for countdowns. */
export function createFacts() {
  const facts = h("div", {});
  const idle = h("p", { class: "pz-idle", hidden: true });
  const runs = h("ul", { class: "pz-runs" });
  const versions = h("p", { class: "pz-hint pz-versions" });
  const element = h(
    "section",
    { class: "pz-card pz-server" },
    h("h2", {}, t("ov_server")),
    idle,
    facts,
    h("h3", { class: "pz-runs-title" }, t("ov_runs")),
    runs,
    h("details", { class: "pz-twin" }, h("summary", {}, t("ov_versions")), versions),
  );
  let system = null;
  let newest = null;

  async function read() {
    const now = Date.now() / 1000;
    await attempt(async () => {
      const [found, lived] = await Promise.all([api.system(), api.engineRuns({ since: now - DAY_S, limit: 200 })]);
      system = found;
      showRuns(lived);
      draw();
    });
  }

  function draw() {
    if (!system) return;
    const { disk_free_bytes: free, disk_total_bytes: total } = system;
    fill(
      facts,
      factList([
        [t("ov_uptime"), seconds(Math.round(Date.now() / 1000 - system.started_at))],
        [t("ov_disk_free"), free === null ? t("mon_unknown") : t("ov_of", { part: bytes(free), whole: bytes(total) })],
        [t("ov_database"), bytes(system.database_bytes)],
        [t("ov_cpu"), t("ov_cores", { cpu: system.cpu ?? system.platform, n: number(system.num_cpus) })],
      ]),
      free !== null && free < FEW * total
        ? h("p", { class: "pz-warn" }, t("ov_disk_low", { share: percent(free, total) }))
        : null,
    );
    fill(versions, ...versionList(system));
  }

  function showRuns(lived) {
    const ended = lived.filter((run) => run.ended_at !== null);
    const failed = ended.filter((run) => run.state === "failed").length;
    fill(
      runs,
      h("li", { class: "pz-hint" }, t("ov_runs_count", { n: lived.length, ended: ended.length, failed })),
      ended
        .toSorted((a, b) => b.ended_at - a.ended_at)
        .slice(0, SHOWN_RUNS)
        .map((run) =>
          h(
            "li",
            { class: run.state === "failed" ? "pz-bad" : null },
            h("time", { class: "pz-figure", title: clock(run.ended_at) }, timeAgo(run.ended_at)),
            h("span", {}, t("ov_run_ended", { model: run.model_id, cause: causeText(run.cause) })),
          ),
        ),
    );
  }

  function show(header) {
    newest = header;
    countDown();
  }

  /** When an engine that nobody asks for will be unloaded; the one that goes next. */
  function countDown() {
    const next = (newest?.engines ?? [])
      .filter((engine) => typeof engine.idle_unload_at === "number")
      .sort((a, b) => a.idle_unload_at - b.idle_unload_at)[0];
    idle.hidden = !next;
    if (!next) return;
    const left = Math.max(0, Math.round(next.idle_unload_at - Date.now() / 1000));
    fill(idle, t("ov_idle_unload", { model: next.model_id, left: left < 60 ? `${left} s` : seconds(left) }));
  }

  const timers = [setInterval(() => document.hidden || read(), PERIOD_MS), setInterval(countDown, 1000)];
  const leave = live.subscribe("events", (event) => /load|fail|crash/.test(event.kind) && read());
  read();
  return {
    element,
    show,
    destroy() {
      timers.forEach(clearInterval);
      leave();
    },
  };
}

function versionList({ versions, platform, home }) {
  const named = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  return [`${named.join(", ")}. ${platform}. `, h("code", {}, home)];
}
