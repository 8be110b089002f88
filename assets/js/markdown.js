// A small part of Markdown as DOM nodes: paragraphs, headings, lists, quotes, code, bold, italics, links.
// Invariant: text becomes text nodes and nothing else; no string is ever parsed as HTML, and a link is http(s) or no link.

import { h, iconButton } from "./dom.js";
import { t } from "./i18n.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,4})\s+(.*)$/;
const BULLET = /^(\s*)[-*+]\s+(.*)$/;
const ORDERED = /^(\s*)(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const INLINE =
  /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|\*([^\s*](?:[^*]*?[^\s*])?)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s()<>"]+)\)/;

/** Cut into blocks: [{kind, lines, ...}]. A block never changes once a later one has begun, so that a growing text can be drawn piece by piece. */
export function splitBlocks(text) {
  const blocks = [];
  let open = null;
  for (const line of text.split("\n")) {
    open = open?.kind === "code" && !open.closed ? inCode(open, line) : startOrGo(blocks, open, line);
  }
  return blocks;
}

function inCode(open, line) {
  if (line.trim().startsWith(open.fence) && !line.trim().replaceAll(open.fence[0], "")) open.closed = true;
  else open.lines.push(line);
  return open;
}

function startOrGo(blocks, open, line) {
  if (!line.trim()) return null;
  const begin = (block) => {
    blocks.push(block);
    return block;
  };
  const fence = FENCE.exec(line);
  if (fence) return begin({ kind: "code", fence: fence[1], language: fence[2], lines: [], closed: false });
  const heading = HEADING.exec(line);
  if (heading) {
    begin({ kind: "heading", level: heading[1].length, lines: [heading[2]] });
    return null;
  }
  const kind = BULLET.test(line) ? "bullets" : ORDERED.test(line) ? "numbers" : QUOTE.test(line) ? "quote" : null;
  if (kind) {
    if (open?.kind !== kind) open = begin({ kind, lines: [] });
    open.lines.push(line);
    return open;
  }
  if (open && open.kind !== "code") {
    open.lines.push(line);
    return open;
  }
  return begin({ kind: "paragraph", lines: [line] });
}

/** Inline marks of one piece of text as nodes. */
export function inlineNodes(text) {
  const nodes = [];
  let rest = text;
  for (let match = INLINE.exec(rest); match; match = INLINE.exec(rest)) {
    if (match.index) nodes.push(rest.slice(0, match.index));
    nodes.push(inlineNode(match));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function inlineNode([, , code, strong, emphasis, label, url]) {
  if (code !== undefined) return h("code", {}, code);
  if (strong !== undefined) return h("strong", {}, inlineNodes(strong));
  if (emphasis !== undefined) return h("em", {}, inlineNodes(emphasis));
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, label);
}

function codeBlock(block) {
  const text = block.lines.join("\n");
  const copy = iconButton("copy", t("copy_code"), () => navigator.clipboard.writeText(text));
  return h(
    "figure",
    { class: "pz-code" },
    h("figcaption", {}, h("span", {}, block.language || t("code")), copy),
    h("pre", { tabindex: 0 }, h("code", {}, text)),
  );
}

function list(block) {
  const numbered = block.kind === "numbers";
  const items = [];
  for (const line of block.lines) {
    const match = (numbered ? ORDERED : BULLET).exec(line);
    if (match) items.push({ text: match.at(-1), depth: Math.min(3, Math.floor(match[1].length / 2)) });
    else items.at(-1).text += `\n${line.trim()}`;
  }
  const start = numbered ? ORDERED.exec(block.lines[0])[2] : null;
  return h(
    numbered ? "ol" : "ul",
    { start },
    items.map(({ text, depth }) => h("li", { "data-depth": depth || null }, inlineNodes(text))),
  );
}

/** One block as a node. */
export function renderBlock(block) {
  switch (block.kind) {
    case "code":
      return codeBlock(block);
    case "heading":
      return h(`h${block.level + 2}`, {}, inlineNodes(block.lines[0]));
    case "bullets":
    case "numbers":
      return list(block);
    case "quote":
      return h("blockquote", {}, inlineNodes(block.lines.map((line) => QUOTE.exec(line)?.[1] ?? line).join("\n")));
    default:
      return h("p", {}, inlineNodes(block.lines.join("\n")));
  }
}

/** Draws a growing text into a node; only blocks that changed are made anew. */
export function createMarkdownView(element) {
  let drawn = [];
  return function update(text) {
    const blocks = splitBlocks(text);
    const keys = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < drawn.length && same < keys.length && drawn[same] === keys[same]) same += 1;
    while (element.childNodes.length > same) element.lastChild.remove();
    element.append(...blocks.slice(same).map(renderBlock));
    drawn = keys;
  };
}
