// SPDX-License-Identifier: Apache-2.0
// Renders a subset of Markdown as elements. No text becomes HTML, and links lead to http and
// https only, so the text of an agent can neither run scripts nor load anything.

import { el } from "./dom.js";

// Each alternative ends at the next delimiter or after a bounded length, so the time is linear in the text.
const inlinePattern = /(?<!`)(`{1,3})(?!`)([^`]{1,2000})\1(?!`)|\*\*([^\s*](?:[^*]{0,2000}?[^\s*])?)\*\*|\*([^\s*](?:[^*]{0,2000}?[^\s*])?)\*|(?<![\w])_([^\s_](?:[^_]{0,2000}?[^\s_])?)_(?![\w])|\[([^[\]\n]{1,500})\]\((https?:\/\/[^\s)]{1,2000})\)|(https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]}])/g;

const depthMax = 8;

// link returns a link, or its text if the address is none.
function link(text, address) {
  if (!URL.canParse(address)) return text;
  return el("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank", text });
}

// inline returns the nodes of a text within a block.
export function inline(text, depth = 0) {
  const nodes = [];
  let end = 0;
  if (depth < depthMax) {
    for (const m of text.matchAll(inlinePattern)) {
      if (m.index > end) nodes.push(text.slice(end, m.index));
      end = m.index + m[0].length;
      if (m[1] !== undefined) nodes.push(el("code", { text: m[2].replace(/^ (.*) $/s, "$1") }));
      else if (m[3] !== undefined) nodes.push(el("strong", {}, ...inline(m[3], depth + 1)));
      else if (m[4] ?? m[5]) nodes.push(el("em", {}, ...inline(m[4] ?? m[5], depth + 1)));
      else if (m[6] !== undefined) nodes.push(link(m[6], m[7]));
      else nodes.push(link(m[8], m[8]));
    }
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const heading = /^ {0,3}(#{1,4})\s+(.*?)\s*#*$/;
const item = /^( *)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const rule = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const tableRule = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

// blocks returns the elements of a text.
export function blocks(text) {
  const lines = text.split("\n");
  const out = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    let m;
    if (!line.trim()) {
      i++;
    } else if ((m = fence.exec(line))) {
      const code = [];
      for (i++; i < lines.length && !(lines[i].trim().startsWith(m[1]) && !lines[i].trim().slice(m[1].length).replaceAll(m[1][0], "").trim()); i++) code.push(lines[i]);
      i++;
      out.push(el("pre", { tabindex: "0", "aria-label": m[2] ? `Code, ${m[2]}` : "Code" }, el("code", { text: code.join("\n") })));
    } else if ((m = heading.exec(line))) {
      out.push(el(`h${Math.min(m[1].length + 1, 4)}`, {}, ...inline(m[2])));
      i++;
    } else if (rule.test(line)) {
      out.push(el("hr"));
      i++;
    } else if (/^ {0,3}>/.test(line)) {
      const quoted = [];
      for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) quoted.push(lines[i].replace(/^ {0,3}> ?/, ""));
      out.push(el("blockquote", {}, el("p", { class: "line" }, ...inline(quoted.join("\n")))));
    } else if (line.includes("|") && i + 1 < lines.length && tableRule.test(lines[i + 1])) {
      const head = el("tr", {}, ...cells(line).map((c) => el("th", { scope: "col" }, ...inline(c))));
      const rows = [];
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) rows.push(el("tr", {}, ...cells(lines[i]).map((c) => el("td", {}, ...inline(c)))));
      out.push(el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
    } else if (item.test(line)) {
      const items = [];
      for (; i < lines.length && lines[i].trim(); i++) {
        if ((m = item.exec(lines[i]))) items.push({ indent: m[1].length, start: m[3], text: m[4] });
        else if (/^ {2,}/.test(lines[i])) items.at(-1).text += "\n" + lines[i].trim();
        else break;
      }
      out.push(list(items));
    } else {
      const paragraph = [];
      for (; i < lines.length && lines[i].trim() && !fence.test(lines[i]) && !heading.test(lines[i]) && !(paragraph.length && item.test(lines[i])); i++) paragraph.push(lines[i]);
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
