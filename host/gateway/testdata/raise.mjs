// SPDX-License-Identifier: Apache-2.0
// Prints what the fields "raise by" of the pages give for texts: node raise.mjs MODULE.
import { Recorded, useElements } from "./recorded.mjs";
useElements(Recorded);
const { RaiseFields } = await import(process.argv[2]);
const both = { tokens: 100, money: 0.5 };
for (const [raise, ...texts] of [[both, "", ""], [both, "0.25", ""], [both, "", "1000"], [both, " 2 ", "7"], [both, "0", ""], [both, "1e3", ""], [both, "-1", ""], [both, "0.0000001", ""], [both, "0,5", ""], [both, "", "1.5"], [both, "", "abc"], [{ tokens: 9 }, "12"], [{ money: 9 }, "12"], [undefined]]) {
  const fields = new RaiseFields({ raise });
  texts.forEach((text, i) => (fields.fields[i].value = text));
  console.log(fields.fields.length, JSON.stringify(fields.value() ?? null));
}
