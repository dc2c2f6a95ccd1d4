// SPDX-License-Identifier: Apache-2.0
// Shows pending work with the module of the chat page: node tasks.mjs MODULE, and prints what is shown, a line for each card,
// and what was cancelled.
import { Recorded, useElements } from "./recorded.mjs";
useElements(Recorded);

const { TaskCards } = await import(process.argv[2]);
const cancelled = [];
const cards = new TaskCards(new Recorded("div"), (id) => cancelled.push(id));
const pending = {
  a: { agent: "secret", skill: "look_up", taskId: "a", startTime: 1_000, status: "pending" },
  b: { agent: "secret", skill: "pay", taskId: "b", startTime: 61_000, status: "waiting" },
  d: { agent: "secret", asker: "secret", skill: "remind", taskId: "d", startTime: 0, status: "pending" },
  c: { agent: "secret", skill: "old", taskId: "c", startTime: 0, status: "late" },
};
cards.show(pending, 42_000);
console.log(cards.root.children.join("\n"));
cards.tick(3_662_000);
console.log(cards.root.children.join("\n"));
cards.root.children[0].children.at(-1).listeners.click();
console.log(cancelled.join(), cards.count, cards.root.hidden);
cards.show({}, 0);
console.log(cards.count, cards.root.hidden);
