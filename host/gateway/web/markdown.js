// SPDX-License-Identifier: Apache-2.0
// Renders a subset of Markdown as elements. No text becomes HTML, and links lead to http and
// https only, so the text of an agent can neither run scripts nor load anything.

import { copyButton, el } from "./dom.js";

// All code here takes time linear in the text, which an agent has chosen: no regular expression can match a
// text in several ways.

const depthMax = 8;

// link returns a link, or its text if the address is none.
function link(text, address) {
  if (!URL.canParse(address)) return text;
  return el("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank", text });
}

const spanMax = 2000; // characters between two delimiters
const labelMax = 500; // characters of the text of a link
const lineMax = 4096; // characters of a line; a longer one is shown as it is

const isSpace = (c) => /^\s$/.test(c);
const isWord = (c) => c !== undefined && /^\w$/.test(c);

// run returns the number of equal characters at a position.
function run(text, at) {
  let n = 1;
  while (text[at + n] === text[at]) n++;
  return n;
}

// spanOf returns the text from a position to the next delimiter, null if it is empty, long, or has a space
// at an end.
function spanOf(text, from, delimiter) {
  const to = text.indexOf(delimiter, from);
  if (to <= from || to - from > spanMax || isSpace(text[from]) || isSpace(text[to - 1])) return null;
  return text.slice(from, to);
}

// code returns the code span at a position: between equal runs of backticks, and without backticks.
function code(text, at) {
  const n = run(text, at);
  const to = n > 3 ? -1 : text.indexOf("`", at + n);
  if (to < 0 || to - at - n > spanMax || run(text, to) !== n) return { length: n };
  const inner = text.slice(at + n, to);
  const trimmed = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ") ? inner.slice(1, -1) : inner;
  return { length: to + n - at, node: () => el("code", { text: trimmed }) };
}

// star returns the strong or emphasized text at a position.
function star(text, at, depth) {
  const strong = text[at + 1] === "*";
  const n = strong ? 2 : 1;
  const inner = spanOf(text, at + n, "*");
  if (inner === null || (strong && text[at + n + inner.length + 1] !== "*")) return { length: 1 };
  return { length: inner.length + 2 * n, node: () => el(strong ? "strong" : "em", {}, ...inline(inner, depth + 1)) };
}

// underscore returns the emphasized text at a position, which does not begin or end within a word.
function underscore(text, at, depth) {
  const inner = isWord(text[at - 1]) ? null : spanOf(text, at + 1, "_");
  if (inner === null || isWord(text[at + inner.length + 2])) return { length: 1 };
  return { length: inner.length + 2, node: () => el("em", {}, ...inline(inner, depth + 1)) };
}

// addressAt returns the address at a position, up to a character of an expression.
function addressAt(text, at, end) {
  const scheme = ["http://", "https://"].find((s) => text.startsWith(s, at));
  if (!scheme) return "";
  let to = at + scheme.length;
  const most = to + spanMax;
  while (to < text.length && to < most && !end.test(text[to])) to++;
  return to === at + scheme.length ? "" : text.slice(at, to);
}

// named returns the link [text](address) at a position.
function named(text, at) {
  let to = at + 1;
  while (to < text.length && to - at <= labelMax && !"[]\n".includes(text[to])) to++;
  if (to === at + 1 || text[to] !== "]" || text[to + 1] !== "(") return { length: 1 };
  const address = addressAt(text, to + 2, /[\s)]/);
  if (!address || text[to + 2 + address.length] !== ")") return { length: 1 };
  return { length: to + 3 + address.length - at, node: () => link(text.slice(at + 1, to), address) };
}

// bare returns the address at a position as a link, without punctuation at its end.
function bare(text, at) {
  let address = addressAt(text, at, /[\s<>"'`]/);
  let to = address.length;
  while (to > 0 && ".,;:!?)]}".includes(address[to - 1])) to--;
  address = address.slice(0, to);
  if (address.length < "http://".length + 2) return { length: 4 };
  return { length: address.length, node: () => link(address, address) };
}

// inline returns the nodes of a text within a block.
export function inline(text, depth = 0) {
  const nodes = [];
  const mark = /[`*_[]|https?:\/\//g;
  let end = 0; // of the text that has its nodes
  for (let m; depth < depthMax && (m = mark.exec(text)); ) {
    const at = m.index;
    const found = { "`": code, "*": star, _: underscore, "[": named }[m[0]]?.(text, at, depth) ?? bare(text, at);
    mark.lastIndex = at + found.length;
    if (!found.node) continue;
    if (at > end) nodes.push(text.slice(end, at));
    nodes.push(found.node());
    end = at + found.length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

// fence returns the fence of a code block and the language; null if the line is none.
function fence(line) {
  const m = /^ {0,3}(`{3,}|~{3,})/.exec(line);
  if (!m || line.includes("`", m[0].length)) return null;
  return [m[0], m[1], /^[\w+#.-]*/.exec(line.slice(m[0].length).trimStart())[0]];
}

// heading returns the marks and the text of a heading; null if the line is none.
function heading(line) {
  const m = /^ {0,3}(#{1,4})\s/.exec(line);
  if (!m) return null;
  let text = line.slice(m[0].length).trim();
  let to = text.length;
  while (text[to - 1] === "#") to--;
  return [m[0], m[1], text.slice(0, to).trimEnd()];
}

// item returns indentation, mark, number and text of an item of a list; null if the line is none.
function item(line) {
  const m = /^( *)(?:([-*+])|(\d{1,9})[.)])\s/.exec(line);
  return m && [m[0], m[1], m[2], m[3], line.slice(m[0].length).trimStart()];
}

// isRule reports whether a line is a horizontal rule: three or more equal marks.
function isRule(line) {
  const marks = line.trim().replaceAll(" ", "");
  return marks.length > 2 && "-*_".includes(marks[0]) && run(marks, 0) === marks.length && !line.startsWith("    ");
}

const cells = (line) => {
  const t = line.trim();
  return t.slice(t.startsWith("|") ? 1 : 0, t.length > 1 && t.endsWith("|") ? -1 : t.length).split("|").map((c) => c.trim());
};

// isTableRule reports whether a line separates the head of a table from its rows.
const isTableRule = (line) => line.includes("-") && cells(line).length > 1 && cells(line).every((c) => /^:?-+:?$/.test(c));

// alignments returns the class of each column of a table, by the line below its head.
const alignments = (rule) => cells(rule).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "align-center" : "align-right") : null));

// codeBlock returns the lines of a code block below its language and a button that copies them.
function codeBlock(language, lines) {
  const text = lines.join("\n");
  return el("div", { class: "code-block" }, el("div", { class: "code-head" }, el("span", { text: language }), copyButton(() => text, "Copy the code")),
    el("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" }, el("code", { text })));
}

// blocks returns the elements of a text.
export function blocks(text) {
  const lines = text.split("\n");
  const out = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    let m;
    if (!line.trim()) {
      i++;
    } else if (line.length > lineMax) {
      out.push(el("p", { class: "line", text: line }));
      i++;
    } else if ((m = fence(line))) {
      const code = [];
      for (i++; i < lines.length && !(lines[i].trim().startsWith(m[1]) && !lines[i].trim().slice(m[1].length).replaceAll(m[1][0], "").trim()); i++) code.push(lines[i]);
      i++;
      out.push(codeBlock(m[2], code));
    } else if ((m = heading(line))) {
      out.push(el(`h${Math.min(m[1].length + 1, 4)}`, {}, ...inline(m[2])));
      i++;
    } else if (isRule(line)) {
      out.push(el("hr"));
      i++;
    } else if (/^ {0,3}>/.test(line)) {
      const quoted = [];
      for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) quoted.push(lines[i].replace(/^ {0,3}> ?/, ""));
      out.push(el("blockquote", {}, el("p", { class: "line" }, ...inline(quoted.join("\n")))));
    } else if (line.includes("|") && i + 1 < lines.length && isTableRule(lines[i + 1])) {
      const aligned = alignments(lines[i + 1]);
      const head = el("tr", {}, ...cells(line).map((c, at) => el("th", { scope: "col", class: aligned[at] }, ...inline(c))));
      const rows = [];
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) rows.push(el("tr", {}, ...cells(lines[i]).map((c, at) => el("td", { class: aligned[at] }, ...inline(c)))));
      out.push(el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
    } else if (item(line)) {
      const items = [];
      for (; i < lines.length && lines[i].trim(); i++) {
        if ((m = item(lines[i]))) items.push({ indent: m[1].length, start: m[3], text: m[4] });
        else if (/^ {2,}/.test(lines[i])) items.at(-1).text += "\n" + lines[i].trim();
        else break;
      }
      out.push(list(items));
    } else {
      const paragraph = [];
      for (; i < lines.length && lines[i].trim() && lines[i].length <= lineMax && !fence(lines[i]) && !heading(lines[i]) && !(paragraph.length && item(lines[i])); i++) paragraph.push(lines[i]);
      out.push(el("p", { class: "line" }, ...inline(paragraph.join("\n"))));
    }
  }
  return out;
}

// list returns a list of items, with those that are indented further below the one before.
function list(items) {
  const top = items[0];
  const root = el(top.start === undefined ? "ul" : "ol", { start: top.start !== undefined && top.start !== "1" ? top.start : null });
  for (let i = 0; i < items.length; ) {
    const li = el("li", { class: "line" }, ...inline(items[i].text));
    const below = [];
    for (i++; i < items.length && items[i].indent > top.indent + 1; i++) below.push(items[i]);
    if (below.length) li.append(list(below));
    root.append(li);
  }
  return root;
}

// Markdown shows a text that grows. Finished blocks stay as they are; only the last one is
// rendered again.
export class Markdown {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.done = 0; // length of the text whose elements are final
    this.final = 0; // number of those elements
    this.pending = 0;
  }

  set(text) {
    if (!text.startsWith(this.text.slice(0, this.done))) this.done = this.final = 0;
    this.text = text;
    this.pending ||= requestAnimationFrame(() => this.render());
  }

  render() {
    this.pending = 0;
    const end = this.text.lastIndexOf("\n\n");
    if (end > this.done) {
      const part = this.text.slice(this.done, end + 2);
      if ((part.match(/^ {0,3}(```|~~~)/gm) ?? []).length % 2 === 0) {
        this.keep(blocks(part));
        this.final = this.root.childNodes.length;
        this.done = end + 2;
      }
    }
    this.keep(blocks(this.text.slice(this.done)));
    this.onrender?.();
  }

  // keep replaces the elements that are not final.
  keep(elements) {
    while (this.root.childNodes.length > this.final) this.root.lastChild.remove();
    this.root.append(...elements);
  }
}
