// SPDX-License-Identifier: Apache-2.0
// Renders texts with the module of the chat page: node markdown.mjs MODULE <texts >results, both JSON. A result has the
// elements as text and the processor time in ms.
import { readFileSync } from "node:fs";
import { Recorded, useElements } from "./recorded.mjs";

class Shown extends Recorded {
  toString() {
    const shown = [this.name, this.href ?? (this.class?.startsWith("align-") && this.class)].filter(Boolean).join(" ");
    return `<${shown}>${this.children.join("")}</${this.name}>`;
  }
}
useElements(Shown);

const { blocks } = await import(process.argv[2]);
const results = JSON.parse(readFileSync(0, "utf8")).map((text) => {
  const start = process.cpuUsage();
  const made = blocks(text);
  const { user, system } = process.cpuUsage(start);
  const ms = (user + system) / 1000; // of the processor, which other programs do not lengthen
  return { ms, html: text.length > 1000 ? "" : made.join("") };
});
console.log(JSON.stringify(results));
