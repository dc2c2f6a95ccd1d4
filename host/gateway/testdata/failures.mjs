// SPDX-License-Identifier: Apache-2.0
// Shows failed runs with the module of the chat page: node failures.mjs MODULE <codes >texts, both JSON. A text is what the
// page shows of a failure without its details.
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
const texts = JSON.parse(readFileSync(0, "utf8")).map((code) => {
  const view = new RunView("run", "session", { change() {}, grown() {}, send() {} });
  view.showMessage("hi");
  view.handle({ type: "error", code, message: "what_the server said" }, false);
  return view.body.toString();
});
console.log(JSON.stringify(texts));
