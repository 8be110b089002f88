// What came of a job, for those kinds that have more to show than a line: figures, a curve, ways out of a failure.

import { acceptanceCurve } from "./acceptance_curve.js";
import { benchmarkTable } from "./benchmark_table.js";
import { failedLoad } from "./failed_load.js";
import { isRunning } from "./jobs.js";

/** A node, or null where the job's line says it all. */
export function jobOutcome(job) {
  if (job.kind === "train-drafter") return acceptanceCurve(measurements(job.log));
  if (isRunning(job)) return null;
  if (job.kind === "benchmark" && job.result?.rows) return benchmarkTable(job.result);
  if (job.kind === "load" && job.state === "failed" && job.result?.kind) return failedLoad(job);
  return null;
}

/** The measurements among the lines of a training's log. */
export function measurements(log) {
  return log.flatMap((line) => {
    if (!line.startsWith("{")) return [];
    try {
      const found = JSON.parse(line);
      return Array.isArray(found.greedy) && found.greedy.length ? [found] : [];
    } catch {
      return []; // a line of something else
    }
  });
}
