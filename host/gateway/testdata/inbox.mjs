// SPDX-License-Identifier: Apache-2.0
// Shows the inbox of the console with its module: node inbox.mjs MODULE <answers >texts. The input is a list of steps, each an
// object of answers of the server by path; a line of the output is the selected card after a step.
import { readFileSync } from "node:fs";

class Recorded {
  children = [];
  dataset = {};
  constructor(name) {
    this.name = name;
  }
  addEventListener() {}
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
  return new Response(JSON.stringify(found));
};

const { Inbox } = await import(process.argv[2]);
const inbox = new Inbox(new Recorded("div"), { refused() {} });
for (answers of JSON.parse(readFileSync(0, "utf8"))) {
  await inbox.refresh();
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  console.log(JSON.stringify(inbox.detail.toString()));
}
inbox.close();
