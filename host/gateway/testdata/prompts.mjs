// SPDX-License-Identifier: Apache-2.0
// Reads prompts of a run with the module of the console: node prompts.mjs MODULE >texts. A line says whether the run has ended,
// what follows, and whether the page offers to read on.
import { Recorded, answered, useElements } from "./recorded.mjs";
useElements(Recorded);
let answer;
globalThis.fetch = async () => new Response(JSON.stringify(answer));

const { PromptList } = await import(process.argv[2]);
for (const ended of [true, false]) {
  for (const next_after of [undefined, 3]) {
    answer = { prompts: [{ step: 3, model: "m" }], next_after };
    const list = new PromptList("default");
    list.show("run", ended);
    await answered();
    console.log(ended, next_after ?? "last", list.list.children.length, list.more.hidden ? "" : "read on");
  }
}
