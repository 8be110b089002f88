// Starting a job from a dialog, which stays until the work has begun: what is refused is refused before that.
// Owns what the dialog says meanwhile; knows no kind of job.

import { fill, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { stageText, startAndWatch } from "./jobs.js";
import { toast } from "./toast.js";

/** `call()` asks the server for the job; `start` is the dialog's button for it, `outcome` where its words stand. */
export async function startFromDialog({ dialog, start, outcome, call }) {
  const waiting = (said) => fill(outcome, h("p", { class: "pz-hint pz-row" }, h("span", { class: "pz-spinner" }), said));

  function refused(message) {
    if (!dialog.node.isConnected) return toast(message, "error");
    fill(outcome, h("p", { class: "pz-problem" }, icon("warning"), h("span", {}, message)));
    return outcome.scrollIntoView({ block: "nearest" });
  }

  start.disabled = true;
  waiting(t("starting"));
  try {
    const job = await startAndWatch(call, {
      enough: (running) => running.stage !== "",
      onchange: (running) => waiting(stageText(running)),
      shows: () => dialog.node.isConnected,
    });
    if (job.state !== "failed") return dialog.close();
    if (dialog.node.isConnected) refused(job.error);
  } catch (error) {
    refused(error.message || t("server_unreachable"));
  }
  start.disabled = false;
  return undefined;
}
