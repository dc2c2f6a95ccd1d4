// SPDX-License-Identifier: Apache-2.0
// Shows an approval and a question with the module of the chat page: node approval.mjs MODULE [past] <messages >text, both JSON.
// The answer of the server to the page is the first message. With past they are read, not new.
import { readFileSync } from "node:fs";

class Recorded {
  children = [];
  dataset = {};
  style = { setProperty() {} };
  addEventListener() {}
  setAttribute(key, value) {
    if (key === "aria-label" || key === "class") this[key] = value;
  }
  append(...children) {
    for (const c of children) if (c instanceof Recorded) c.parent = this;
    this.children.push(...children);
  }
  prepend(...children) {
    this.append(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  remove() {
    if (this.parent) this.parent.children = this.parent.children.filter((c) => c !== this);
  }
  querySelector(selector) {
    return this.all().find((e) => `.${e.class}`.startsWith(selector)) ?? new Recorded();
  }
  querySelectorAll(selectors) {
    return this.all().filter((e) => selectors.split(", ").some((s) => (e.class ?? "").split(" ").includes(s.slice(1))));
  }
  all() {
    return [this, ...this.children.flatMap((c) => (c instanceof Recorded ? c.all() : []))];
  }
  set textContent(text) {
    this.children = [text];
  }
  get textContent() {
    return this.children.join("");
  }
  toString() {
    return [this["aria-label"] ?? "", ...this.children].join("\n");
  }
}
globalThis.document = { createElement: () => new Recorded(), getElementById: () => new Recorded() };
globalThis.sessionStorage = { getItem: () => "" };
const messages = JSON.parse(readFileSync(0, "utf8"));
globalThis.fetch = async () => new Response(JSON.stringify(messages[0]));

const { RunView } = await import(process.argv[2]);
const view = new RunView("run", "session", { change() {}, grown() {}, send() {} });
for (const m of messages) view.handle(m, process.argv[3] !== "past");
for (let turn = 0; turn < 10; turn++) {
  await new Promise(setImmediate); // the server has answered
  for (const card of [...view.cards.values()]) await card.show?.();
}
console.log(JSON.stringify(view.body.toString()));
