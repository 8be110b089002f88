// What is known of the block under the pointer or the cursor. At once what the map holds; a moment later, from the API,
// all owners, hash, age and hits. Invariant: what was asked for one block is never shown for another.

import { button, fill, h } from "./dom.js";
import { number, seconds, t } from "./i18n.js";
import { STATES, isAhead, refsOf, stateOf } from "./kv_map_cells.js";

const PATIENCE_MS = 120; // a pointer that only passes asks for nothing
const AGAIN_MS = 1000; // a block that is looked at for longer is asked about again

export const shortId = (owner) => owner.request_id.slice(0, 8) + (owner.index ? `·${owner.index + 1}` : "");

/**
 * fetchBlock(id): its detail from the API; select(owner id); hue(owner id): a CSS colour.
 * {element, show(blocks, id, count, pinned)}
 */
export function createDetail({ fetchBlock, select, hue }) {
  const element = h("section", { class: "pz-kv-detail", "aria-live": "polite", "aria-label": t("kv_detail") });
  let wanted = null;
  let shown = null;
  let told = null; // {id, detail}
  let timer = 0;
  let due = 0; // when the block that is looked at is to be asked about

  function show(blocks, id, count = 1, pinned = false) {
    clearTimeout(timer);
    if (id !== wanted || blocks !== shown) due = Date.now() + PATIENCE_MS;
    [wanted, shown] = [id, blocks];
    if (id === null || !blocks?.view || id > blocks.count) {
      fill(element, h("p", { class: "pz-hint" }, t("kv_detail_none")));
      return;
    }
    draw(blocks, id, count, pinned);
    if (count === 1) timer = setTimeout(() => ask(blocks, id, pinned), Math.max(0, due - Date.now()));
  }

  async function ask(blocks, id, pinned) {
    let detail;
    due = Date.now() + AGAIN_MS;
    try {
      detail = await fetchBlock(id);
    } catch {
      return; // the map itself says when the engine cannot be asked
    }
    if (wanted !== id || !element.isConnected) return;
    told = { id, detail };
    draw(blocks, id, 1, pinned);
  }

  function draw(blocks, id, count, pinned) {
    const detail = told?.id === id ? told.detail : null;
    fill(
      element,
      h(
        "h3",
        {},
        count > 1 ? t("kv_blocks_from_to", { first: number(id), last: number(id + count - 1) }) : t("kv_block", { id }),
        pinned && h("span", { class: "pz-kv-pin" }, t("kv_pinned")),
      ),
      count > 1 ? groupLines(blocks, id, count) : blockLines(blocks, id, detail),
    );
  }

  function blockLines(blocks, id, detail) {
    const code = blocks.codes[id];
    const state = isAhead(code) ? "ahead" : refsOf(code) > 1 ? "shared" : STATES[stateOf(code)];
    const owners = detail?.owners ?? [blocks.owner(blocks.owners[id])].filter(Boolean);
    return [
      facts([
        ["kv_fact_state", t(`kv_state_${state}`, { count: refsOf(code) })],
        ["kv_fact_tokens", t("kv_of", { part: blocks.tokens(id), whole: blocks.view.block_size })],
        blocks.view.windows.length > 1 && ["kv_fact_group", groupName(blocks.view.windows, detail?.group)],
        ["kv_fact_hash", detail ? (detail.hash ?? t("kv_no_hash")) : "…"],
        ["kv_fact_age", detail ? seconds(detail.age_s) : "…"],
        ["kv_fact_hits", detail ? number(detail.hits) : "…"],
      ]),
      owners.length > 0 && h("p", { class: "pz-hint" }, t(owners.length > 1 ? "kv_owners_many" : "kv_owner_one")),
      h("ul", { class: "pz-kv-detail-owners" }, owners.map(ownerLine)),
    ];
  }

  function groupLines(blocks, id, count) {
    const tally = [0, 0, 0];
    for (let each = id; each < id + count; each += 1) tally[stateOf(blocks.codes[each])] += 1;
    return [
      facts(STATES.map((name, at) => [`kv_state_${name}`, number(tally[at])])),
      h("p", { class: "pz-hint" }, t("kv_drill_hint")),
    ];
  }

  function ownerLine(owner) {
    const place = owner.place === undefined ? "" : t("kv_place", { place: owner.place + 1, places: owner.places });
    return h(
      "li",
      {},
      h("span", { class: "pz-swatch", style: { background: hue(owner.id) } }),
      button(shortId(owner), () => select(owner.id), { kind: "quiet", title: t("kv_show_path") }),
      h("span", { class: "pz-hint pz-figure" }, place),
    );
  }

  show(null, null);
  return { element, show };
}

/** "2: window of 512 tokens"; – for a block that belongs to no group now. */
function groupName(windows, group) {
  if (group === undefined || group === null) return "–";
  const values = { group: group + 1, window: number(windows[group]) };
  return t(windows[group] ? "kv_group_window" : "kv_group_full", values);
}

const facts = (pairs) =>
  h(
    "dl",
    { class: "pz-kv-facts" },
    pairs.filter(Boolean).map(([key, value]) =>
      h(
        "div",
        { title: key.startsWith("kv_fact") ? t(`${key}_definition`) : null },
        h("dt", {}, t(key)),
        h("dd", { class: "pz-figure", dataset: { fact: key } }, value),
      ),
    ),
  );
