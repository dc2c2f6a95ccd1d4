// SPDX-License-Identifier: Apache-2.0
// Shows the inbox of the console with its module: node inbox.mjs MODULE <answers >texts. The input is a list of steps, each an
// object of answers of the server by path, with "press" the text of a button to press; a line of the output is the selected card
// after a step, or the list of one with "list". An answer with a number as its status is an error.
import { readFileSync } from "node:fs";

class Recorded {
  children = [];
  dataset = {};
  value = "";
  constructor(name) {
    this.name = name;
  }
  listeners = {};
  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }
  remove() {}
  all() {
    return [this, ...this.children.flatMap((c) => (c instanceof Recorded ? c.all() : []))];
  }
  setAttribute() {}
  append(...children) {
    this.children.push(...children);
  }
  appendChild(child) {
    this.children.push(child);
    return child;
  }
  replaceChildren(...children) {
    this.children = children;
  }
  querySelectorAll() {
    return [];
  }
  set textContent(text) {
    this.children = [text];
  }
  toString() {
    return this.name === "button" ? `[${this.children.join(" ")}]` : this.children.join(" ");
  }
}
globalThis.document = { createElement: (name) => new Recorded(name), getElementById: () => new Recorded() };
globalThis.matchMedia = () => ({ matches: false });
globalThis.sessionStorage = { getItem: () => "" };
let answers;
globalThis.fetch = async (path) => {
  const found = answers[new URL(path).pathname];
  if (!found) throw new Error(`no answer for ${path}`);
  return new Response(JSON.stringify(found), typeof found.status === "number" ? { status: found.status } : {});
};

const { Inbox } = await import(process.argv[2]);
const inbox = new Inbox(new Recorded("div"), { refused: (e, action) => action || console.log(`refused: ${e.message}`) });
for (answers of JSON.parse(readFileSync(0, "utf8"))) {
  if (answers.press) inbox.detail.all().find((e) => e.name === "button" && e.toString() === `[${answers.press}]`).listeners.click();
  else await inbox.refresh();
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  console.log(JSON.stringify((answers.list ? inbox.list : inbox.detail).toString()));
}
inbox.close();
