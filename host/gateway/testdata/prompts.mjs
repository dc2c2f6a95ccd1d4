// SPDX-License-Identifier: Apache-2.0
// Reads prompts of a run with the module of the console: node prompts.mjs MODULE >texts. A line says whether the run has ended,
// what follows, and whether the page offers to read on. The other lines are those of trees: runs that were asked for, groups, and a note.
import { Recorded, answered, useElements } from "./recorded.mjs";
useElements(Recorded);
let answer;
globalThis.fetch = async () => new Response(JSON.stringify(answer));

const { PromptList, TreePrompts } = await import(process.argv[2]);
for (const ended of [true, false]) {
  for (const next_after of [undefined, 3]) {
    answer = { prompts: [{ step: 3, model: "m" }], next_after };
    const list = new PromptList("default");
    list.show("run", ended);
    await answered();
    console.log(ended, next_after ?? "last", list.list.children.length, list.more.hidden ? "" : "read on");
  }
}

const asked = [];
globalThis.fetch = async (url) => {
  asked.push(String(url).match(/runs\/([^/]*)/)[1]);
  return new Response(JSON.stringify({ prompts: [{ step: 1, model: "m" }] }));
};
const tree = (n) => new Map(Array.from({ length: n }, (_, i) => [`r${i}`, { id: `r${i}`, agent: `a${i}`, to: "x" }]));
const prompts = new TreePrompts("default");
for (const n of [1, 3, 3, 22]) {
  asked.length = 0;
  prompts.show(tree(n));
  await answered();
  console.log(n, asked.length, asked[0] ?? "none", prompts.groups.children.length, prompts.groups.children.map((g) => g.all().filter((e) => e.name === "h3")).flat().slice(0, 2).join("; "), prompts.note.textContent);
}
