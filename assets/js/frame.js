// The frame of every page: the rail (a bar at the foot of a narrow screen), the header, and the shortcuts between pages.

import { fill, h, icon } from "./dom.js";
import { createHeader } from "./header.js";
import { t } from "./i18n.js";

export function mount(element) {
  const current = element.dataset.frame;
  const routes = element.dataset.routes.split(" ").map((route) => route.split("="));
  fill(
    element,
    h("a", { class: "pz-skip", href: "#pz-main" }, t("skip_to_content")),
    h(
      "nav",
      { class: "pz-rail", "aria-label": t("navigation") },
      h(
        "a",
        { class: "pz-brand", href: "/" },
        h("img", { src: "/assets/icons/favicon.svg", alt: "", width: 30, height: 30 }),
        h("span", {}, "Pizarra"),
      ),
      routes.map(([name, path]) => link(name, path, name === current)),
    ),
    createHeader(),
  );
  document.title = `${t(`nav_${current}`)} · Pizarra`;
  document.querySelector("main")?.setAttribute("id", "pz-main");
  installShortcuts(new Map(routes));
}

function link(name, path, active) {
  return h(
    "a",
    { class: "pz-rail-link", href: path, "aria-current": active ? "page" : null },
    icon(name),
    h("span", {}, t(`nav_${name}`)),
  );
}

/** g then the first letter of a page; off inside text fields. */
function installShortcuts(routes) {
  const pages = { o: "overview", c: "chat", p: "playground", m: "models", r: "monitor" };
  let armed = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog"))
      return;
    const path = routes.get(pages[event.key]);
    if (event.key === "g") armed = Date.now();
    else if (path && Date.now() - armed < 1500) location.assign(path);
  });
}
