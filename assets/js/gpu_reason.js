// Why there is no GPU, in the page's language where the server's words are known.

import { t } from "./i18n.js";

const UNREADABLE = /^no NVIDIA GPU can be read here \((.*)\)$/;

export function gpuReason(reason) {
  const [, detail] = UNREADABLE.exec(reason ?? "") ?? [];
  if (detail) return t("mon_no_gpu", { detail });
  return reason === "the NVIDIA driver lists no GPU" ? t("mon_no_gpu_listed") : (reason ?? t("mon_unknown"));
}
