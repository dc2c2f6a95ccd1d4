// SPDX-License-Identifier: Apache-2.0
// Shows an approval and a question with the module of the chat page: node approval.mjs MODULE [past] <messages >text, both JSON.
// The answer of the server to the page is the first message. With past they are read, not new.
import { readFileSync } from "node:fs";
import { Recorded, useElements } from "./recorded.mjs";

class Shown extends Recorded {
  toString() {
    return [this["aria-label"] ?? "", ...this.children].join("\n");
  }
}
useElements(Shown);
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
