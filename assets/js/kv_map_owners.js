// The map as a table: who holds which blocks. The twin of the canvas, and the way to choose an owner without it.

import { button, fill, h } from "./dom.js";
import { number, t } from "./i18n.js";
import { ranges } from "./kv_map_cells.js";
import { shortId } from "./kv_map_detail.js";

const COLUMNS = ["owner", "tokens", "blocks", "shared", "ahead", "from_cache"];

/** select(owner id or null); hue(owner id). {element, update(view, chosen, path)} */
export function createOwners({ select, hue }) {
  const body = h("tbody");
  const none = h("p", { class: "pz-empty" }, t("kv_owners_none"));
  const table = h(
    "div",
    { class: "pz-table-wrap" },
    h(
      "table",
      { class: "pz-table pz-kv-owners", "aria-label": t("kv_owners") },
      h("thead", {}, h("tr", {}, COLUMNS.map(heading))),
      body,
    ),
  );
  const caption = h("p", { class: "pz-hint" }, t("kv_owners_caption"));
  const element = h("section", { class: "pz-card pz-kv-twin" }, h("h2", {}, t("kv_owners")), caption, table, none);
  const rows = new Map();

  function update(view, chosen, path) {
    none.hidden = view.owners.length > 0;
    table.hidden = caption.hidden = view.owners.length === 0;
    for (const [id, row] of rows) {
      if (view.owners.some((owner) => owner.id === id)) continue;
      row.line.remove();
      row.path.remove();
      rows.delete(id);
    }
    for (const owner of view.owners) {
      const row = rows.get(owner.id) ?? create(owner);
      const cells = [
        t("kv_of", { part: number(owner.num_computed_tokens), whole: number(owner.num_tokens) }),
        ...[owner.blocks, owner.shared, owner.ahead, owner.num_cached_tokens].map((value) => number(value)),
      ];
      cells.forEach((text, at) => (row.cells[at].textContent = text));
      const open = owner.id === chosen;
      row.button.setAttribute("aria-pressed", String(open));
      row.path.hidden = !open;
      if (open) fill(row.path.firstChild, pathText(path?.owner === owner.id ? path : null, view.windows));
    }
  }

  function create(owner) {
    const isChosen = () => choose.getAttribute("aria-pressed") === "true";
    const choose = button(shortId(owner), () => select(isChosen() ? null : owner.id), {
      kind: "quiet",
      title: t("kv_show_path"),
    });
    const href = `/requests?id=${encodeURIComponent(owner.request_id)}`;
    const cells = COLUMNS.slice(1).map(() => h("td", { class: "pz-figure" }));
    const line = h(
      "tr",
      { dataset: { owner: owner.id } },
      h(
        "td",
        {},
        h(
          "span",
          { class: "pz-kv-owner" },
          h("span", { class: "pz-swatch", style: { background: hue(owner.id) } }),
          choose,
          h("a", { href, title: t("kv_to_request") }, t("kv_request")),
        ),
      ),
      cells,
    );
    const path = h("tr", { class: "pz-kv-path", hidden: true }, h("td", { colspan: COLUMNS.length }));
    body.append(line, path);
    const row = { line, path, cells, button: choose };
    rows.set(owner.id, row);
    return row;
  }

  return { element, update };
}

const heading = (name) =>
  h("th", { scope: "col", title: t(`kv_column_${name}_definition`) }, t(`kv_column_${name}`));

/** The blocks in the order of the text. */
function pathText(path, windows) {
  if (!path) return h("span", { class: "pz-hint" }, "…");
  const name = ({ passed }, group) => {
    const values = { group: group + 1, window: number(windows[group]), passed: number(passed) };
    if (windows[group]) return t("kv_path_window", values);
    return path.tables.length > 1 ? t("kv_path_group", values) : t("kv_path");
  };
  return path.tables.map((table, group) =>
    h(
      "p",
      {},
      h("span", { class: "pz-hint" }, name(table, group), " "),
      h("span", { class: "pz-figure" }, ranges(table.blocks)),
    ),
  );
}
