// The frame of every page: the rail (a bar at the foot of a narrow screen), the header, and the keyboard.

import { button, fill, h, icon } from "./dom.js";
import { createHeader } from "./header.js";
import { t } from "./i18n.js";
import { installKeys, showKeys } from "./keys.js";

export function mount(element) {
  const current = element.dataset.frame;
  const routes = element.dataset.routes.split(" ").map((route) => route.split("="));
  const byName = new Map(routes);
  fill(
    element,
    h("a", { class: "pz-skip", href: "#pz-main", onclick: skip }, t("skip_to_content")),
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
      button(t("keys_button"), () => showKeys(byName), { kind: "plain", iconName: "keyboard", title: t("keys_title") }),
    ),
    createHeader(),
  );
  document.title = `${t(`nav_${current}`)} · Pizarra`;
  const main = document.querySelector("main");
  main?.setAttribute("id", "pz-main");
  main?.setAttribute("tabindex", "-1"); // where the skip link leads
  installKeys(byName);
}

/** Not by its address: Gradio sets a base for addresses, so that this one would lead to another page. */
function skip(event) {
  event.preventDefault();
  document.getElementById("pz-main")?.focus();
}

function link(name, path, active) {
  return h(
    "a",
    { class: "pz-rail-link", href: path, "aria-current": active ? "page" : null },
    icon(name),
    h("span", {}, t(`nav_${name}`)),
  );
}
