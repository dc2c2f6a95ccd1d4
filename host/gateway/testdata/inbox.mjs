// SPDX-License-Identifier: Apache-2.0
// Shows the inbox of the console with its module: node inbox.mjs MODULE <answers >texts. The input is a list of steps, each an
// object of answers of the server by path, with "press" the text of a button to press; a line of the output is the selected card
// after a step, or the list of one with "list". An answer with a number as its status is an error.
import { readFileSync } from "node:fs";
import { Recorded, answered, useElements } from "./recorded.mjs";

class Shown extends Recorded {
  toString() {
    return this.name === "button" ? `[${super.toString()}]` : super.toString();
  }
}
useElements(Shown);
globalThis.matchMedia = () => ({ matches: false });
let answers;
globalThis.fetch = async (path) => {
  const found = answers[new URL(path).pathname];
  if (!found) throw new Error(`no answer for ${path}`);
  return new Response(JSON.stringify(found), typeof found.status === "number" ? { status: found.status } : {});
};

const { Inbox } = await import(process.argv[2]);
const inbox = new Inbox(new Shown("div"), { refused: (e, action) => action || console.log(`refused: ${e.message}`) });
for (answers of JSON.parse(readFileSync(0, "utf8"))) {
  if (answers.press) inbox.detail.all().find((e) => e.name === "button" && e.toString() === `[${answers.press}]`).listeners.click();
  else await inbox.refresh();
  await answered();
  console.log(JSON.stringify((answers.list ? inbox.list : inbox.detail).toString()));
}
inbox.close();
