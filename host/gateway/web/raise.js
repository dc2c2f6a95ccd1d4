// SPDX-License-Identifier: Apache-2.0
// What is added to a budget that an agent asks for.

import { el } from "./dom.js";

// RaiseFields are the fields "raise by" of an approval of the kind budget. An empty field leaves its amount to the server,
// which adds what the approval says.
export class RaiseFields {
  constructor(approval) {
    const { tokens, money } = approval.raise ?? {};
    this.all = Object.entries({ money: money > 0 && ["money", "decimal", money], tokens: tokens > 0 && ["tokens", "numeric", tokens] })
      .filter(([, given]) => given)
      .map(([name, [label, mode, given]]) => [name, el("input", { type: "text", class: "input", inputmode: mode, autocomplete: "off", maxlength: "20", placeholder: `${label}: ${given}`, "aria-label": `Raise by ${label}` })]);
    this.root = el("div", { class: "row raise" }, el("span", { class: "small", text: "Raise by" }), ...this.fields);
  }

  get fields() {
    return this.all.map(([, field]) => field);
  }

  // value returns what is added, undefined if all fields are empty, or {error}.
  value() {
    const given = this.all.map(([name, field]) => [name, field.value.trim()]).filter(([, text]) => text);
    for (const [name, text] of given) {
      const form = name === "tokens" ? /^\d{1,15}$/ : /^\d{1,9}(\.\d{1,6})?$/;
      if (!form.test(text) || Number(text) === 0) return { error: name === "tokens" ? "Raise by a whole number of tokens above 0." : "Raise by an amount above 0 such as 0.50, with at most 6 decimals." };
    }
    return given.length ? Object.fromEntries(given.map(([name, text]) => [name, Number(text)])) : undefined;
  }
}
