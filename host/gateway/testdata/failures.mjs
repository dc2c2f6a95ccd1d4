// SPDX-License-Identifier: Apache-2.0
// Shows failed runs with the module of the chat page: node failures.mjs MODULE <failures >texts, both JSON. A failure is a
// code, or a whole message. A text is what the page shows of it without its details.
import { readFileSync } from "node:fs";
import { Recorded, useElements } from "./recorded.mjs";

class Shown extends Recorded {
  toString() {
    return this.name === "details" ? "" : this.children.join("\n");
  }
}
useElements(Shown);

const { RunView } = await import(process.argv[2]);
const texts = JSON.parse(readFileSync(0, "utf8")).map((failure) => {
  const view = new RunView("run", "session", { change() {}, grown() {}, send() {} });
  view.showMessage("hi");
  view.handle({ type: "error", message: "what_the server said", ...(typeof failure === "string" ? { code: failure } : failure) }, false);
  return view.body.toString();
});
console.log(JSON.stringify(texts));
