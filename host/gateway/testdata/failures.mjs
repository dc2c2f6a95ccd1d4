// SPDX-License-Identifier: Apache-2.0
// Shows failed runs with the module of the chat page: node failures.mjs MODULE <failures >texts, both JSON. A failure is a
// code, or a whole message. A text is what the page shows of it without its details.
import { readFileSync } from "node:fs";

class Recorded {
  children = [];
  dataset = {};
  style = { setProperty() {} };
  constructor(name) {
    this.name = name;
  }
  addEventListener() {}
  setAttribute() {}
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  remove() {}
  querySelector() {
    return new Recorded();
  }
  set textContent(text) {
    this.children = [text];
  }
  toString() {
    return this.name === "details" ? "" : this.children.join("\n");
  }
}
globalThis.document = { createElement: (name) => new Recorded(name), getElementById: () => new Recorded() };

const { RunView } = await import(process.argv[2]);
const texts = JSON.parse(readFileSync(0, "utf8")).map((failure) => {
  const view = new RunView("run", "session", { change() {}, grown() {}, send() {} });
  view.showMessage("hi");
  view.handle({ type: "error", message: "what_the server said", ...(typeof failure === "string" ? { code: failure } : failure) }, false);
  return view.body.toString();
});
console.log(JSON.stringify(texts));
