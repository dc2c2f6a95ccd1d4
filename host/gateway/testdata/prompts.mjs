// SPDX-License-Identifier: Apache-2.0
// Reads prompts of a run with the module of the console: node prompts.mjs MODULE >texts. A line says whether the run has ended,
// what follows, and whether the page offers to read on.
class Recorded {
  children = [];
  addEventListener() {}
  setAttribute() {}
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
}
globalThis.document = { createElement: () => new Recorded(), getElementById: () => new Recorded() };
globalThis.sessionStorage = { getItem: () => "" };
let answer;
globalThis.fetch = async () => new Response(JSON.stringify(answer));

const { PromptList } = await import(process.argv[2]);
for (const ended of [true, false]) {
  for (const next_after of [undefined, 3]) {
    answer = { prompts: [{ step: 3, model: "m" }], next_after };
    const list = new PromptList("default");
    list.show("run", ended);
    for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
    console.log(ended, next_after ?? "last", list.list.children.length, list.more.hidden ? "" : "read on");
  }
}
