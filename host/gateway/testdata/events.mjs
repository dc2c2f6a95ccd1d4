// SPDX-License-Identifier: Apache-2.0
// Prints what the module of the console shows of events: node events.mjs MODULE <events >texts
import { readFileSync } from "node:fs";
import { Recorded, useElements } from "./recorded.mjs";
useElements(Recorded);

const { brief } = await import(process.argv[2]);
for (const e of JSON.parse(readFileSync(0, "utf8"))) console.log(brief(e));
