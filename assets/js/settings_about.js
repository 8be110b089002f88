// Settings, About: what this installation is, with the texts that came with it. Nothing here asks another host.

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { factList } from "./fact_list.js";
import { t } from "./i18n.js";
import { attempt } from "./toast.js";

export function mount(panel) {
  let gone = false;
  fill(panel, h("p", { class: "pz-empty" }, t("set_reading")));
  attempt(() => api.about()).then((about) => {
    if (gone) return;
    if (!about) fill(panel, h("p", { class: "pz-empty" }, t("server_unreachable")));
    else fill(panel, cards(about));
  });
  return { destroy: () => (gone = true) };
}

function cards(about) {
  const { processor, paths } = about;
  const kernels = about.engines.map((engine) => [
    engine.model_id,
    [engine.device, engine.dtype, engine.backends ?? t("set_no_kernels")].join(" · "),
  ]);
  return [
    card(t("set_versions"), [
      ["Pizarra", about.version],
      ["Python", about.python],
      [t("set_system"), about.system],
    ]),
    card(t("set_processor"), [
      [t("set_name"), processor.name ?? t("set_not_available")],
      [t("set_cores"), String(processor.cores)],
      [t("set_features"), processor.features.join(" ") || t("set_not_available")],
    ]),
    card(t("set_kernels"), kernels.length ? kernels : [[t("set_kernels"), t("set_no_engine")]]),
    card(t("set_paths"), [
      [t("set_path_home"), paths.home],
      [t("set_path_database"), paths.database],
      [t("set_path_models"), paths.models],
      [t("set_path_logs"), paths.logs],
    ]),
    libraries(about.libraries),
    documents(about.documents),
  ];
}

function card(title, facts) {
  return h("section", { class: "pz-card pz-set-card" }, h("h2", {}, title), factList(facts));
}

function libraries(known) {
  const line = ({ name, version, license }) =>
    h(
      "tr",
      {},
      h("td", {}, name),
      h("td", { class: "pz-figure" }, version ?? t("set_not_installed")),
      h("td", { class: "pz-wrap" }, license ?? "–"),
    );
  const head = [t("set_library"), t("set_version"), t("set_licence")].map((name) => h("th", {}, name));
  return h(
    "section",
    { class: "pz-card pz-set-card" },
    h("h2", {}, t("set_libraries")),
    h(
      "div",
      { class: "pz-table-wrap" },
      h(
        "table",
        { class: "pz-table pz-set-table" },
        h("thead", {}, h("tr", {}, head)),
        h("tbody", {}, known.map(line)),
      ),
    ),
  );
}

function documents(names) {
  const link = (name) =>
    h(
      "li",
      {},
      h(
        "a",
        {
          href: `/api/about/documents/${name}`,
          onclick: (event) => {
            if (event.ctrlKey || event.metaKey) return;
            event.preventDefault();
            openText(name);
          },
        },
        name,
      ),
    );
  return h(
    "section",
    { class: "pz-card pz-set-card" },
    h("h2", {}, t("set_documents")),
    h("p", { class: "pz-hint" }, t("set_documents_hint")),
    h("ul", { class: "pz-set-documents" }, names.map(link), h("li", {}, h("a", { href: "/docs" }, t("set_api_page")))),
  );
}

/** A text of the program in a dialog, as it stands in its file. */
async function openText(name) {
  const response = await attempt(() => fetch(`/api/about/documents/${name}`)).catch(() => undefined);
  const text = response?.ok ? await response.text() : t("server_unreachable");
  openDialog({ title: name, body: h("pre", { class: "pz-set-text", tabindex: 0 }, text), wide: true });
}
