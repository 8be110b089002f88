// Tokens as they are chalked up: every character visible, and what became of each by shape as well as by colour.
// Owns the way from a token to its node and to its words; knows nothing of rows or of where tokens come from.

import { h } from "./dom.js";
import { number, t } from "./i18n.js";

const SHOWN = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
// control characters, and those that have no width of their own or turn the direction of others
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00a0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\ufeff]/u;
const PARTS = new RegExp(`( |${HIDDEN.source})`, "u");

/** A token's text as nodes: blanks and controls as signs, dimmed. */
export function visible(token) {
  if (token.special) return [h("span", { class: "pz-chalk-special" }, token.text || `#${token.id}`)];
  if (token.bytes !== null && token.bytes !== undefined)
    return [h("span", { class: "pz-chalk-sign" }, `⟨${token.bytes.toUpperCase()}⟩`)];
  if (token.text === "") return [h("span", { class: "pz-chalk-sign" }, "∅")];
  return token.text
    .split(PARTS)
    .filter(Boolean)
    .map((part) => (SHOWN[part] || HIDDEN.test(part) ? h("span", { class: "pz-chalk-sign" }, sign(part)) : part));
}

const sign = (part) => SHOWN[part] ?? `⟨U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** The tokens of a step in order: [{token, kind, position, entry, fix}]; a rejected one brings what replaced it. */
export function tokensOf(entry) {
  const { drafted, next } = entry;
  const found = drafted.map((token, place) => ({
    token,
    kind: token.fate,
    position: entry.position + place,
    entry,
    fix: token.fate === "rejected" && next?.kind === "recovered" ? next : null,
  }));
  if (next && next.kind !== "recovered")
    found.push({ token: next, kind: next.kind, position: entry.position + entry.num_accepted, entry, fix: null });
  return found;
}

/** A token on the board. `place` is its number among all. */
export function tokenNode(found, place) {
  const { token, kind, fix } = found;
  const word = h(kind === "rejected" ? "s" : "span", { class: "pz-chalk-word" }, visible(token));
  return h(
    "span",
    {
      class: `pz-chalk-token pz-chalk-${kind}${token.unused ? " pz-chalk-unused" : ""}`,
      role: "img",
      tabindex: -1,
      "data-place": place,
      "aria-label": spoken(found),
    },
    fix ? h("span", { class: "pz-chalk-fix" }, visible(fix)) : null,
    word,
  );
}

const quoted = (token) => (token.bytes ? `⟨${token.bytes.toUpperCase()}⟩` : JSON.stringify(token.text));

function spoken({ token, kind, fix }) {
  const what = `${quoted(token)}, ${t(`board_kind_${kind}`)}`;
  return fix ? `${what}: ${quoted(fix)}` : what;
}

/** What is known of a token, in words: its fate, where it stands, and how likely both sides thought it. */
export function describe({ token, kind, position, entry, fix }) {
  const parts = [t(`board_kind_${kind}`), t("board_position", { position: number(position), id: token.id })];
  if (fix) parts.push(t("board_fixed_by", { token: quoted(fix) }));
  if (kind === "accepted" || kind === "rejected" || kind === "not_judged") {
    parts.push(t("board_p", { p: share(token.p) }), t("board_q", { q: share(token.q), proposer: entry.proposer }));
  }
  if (token.unused) parts.push(t("board_kind_unused"));
  return { name: quoted(token), text: parts.join(" · ") };
}

const share = (value) =>
  value === null || value === undefined ? t("board_not_available") : value < 0.001 ? "< 0.001" : number(value, 3);
