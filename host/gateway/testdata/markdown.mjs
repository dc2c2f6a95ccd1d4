// SPDX-License-Identifier: Apache-2.0
// Renders texts with the module of the chat page: node markdown.mjs MODULE <texts >results, both JSON. A result has the
// elements as text and the processor time in ms. The elements only record what the module makes of them.
import { readFileSync } from "node:fs";

class Recorded {
  constructor(name) {
    this.name = name;
    this.children = [];
  }
  append(...children) {
    for (const c of children) this.children.push(c);
  }
  setAttribute(key, value) {
    if (key === "href") this.href = value;
    if (key === "class" && value.startsWith("align-")) this.href = value;
  }
  addEventListener() {}
  set textContent(text) {
    this.children = [text];
  }
  toString() {
    return `<${this.name}${this.href ? ` ${this.href}` : ""}>${this.children.join("")}</${this.name}>`;
  }
}
globalThis.document = { createElement: (name) => new Recorded(name) };

const { blocks } = await import(process.argv[2]);
const results = JSON.parse(readFileSync(0, "utf8")).map((text) => {
  const start = process.cpuUsage();
  const made = blocks(text);
  const { user, system } = process.cpuUsage(start);
  const ms = (user + system) / 1000; // of the processor, which other programs do not lengthen
  return { ms, html: text.length > 1000 ? "" : made.join("") };
});
console.log(JSON.stringify(results));
