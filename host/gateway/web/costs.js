// SPDX-License-Identifier: Apache-2.0
// What models cost, and the tokens that they took, by user, agent, model or day.

import { request } from "./api.js";
import { el, visible } from "./dom.js";
import { table } from "./format.js";

const period = 30000; // ms between two reads: a report reads the runs of all its days
const rowsMax = 200;
const dayMs = 24 * 3600 * 1000;

// money returns micros as text, such as 2.50 EUR or 0.000125 EUR.
export function money(micros, currency) {
  const units = (micros / 1e6).toLocaleString(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 6 });
  return currency ? `${units} ${currency}` : units;
}

let known = null; // promise of the currency

// currency returns the currency of the server, "" if the key may not read it.
export function currency() {
  known ??= request("GET", `/v1/usage?user=*&by=&from=${day(0)}&to=${day(0)}&limit=1`).then((report) => report.currency ?? "", () => ((known = null), ""));
  return known;
}

// day returns the day in UTC that is some days ago.
const day = (ago) => new Date(Date.now() - ago * dayMs).toISOString().slice(0, 10);

const columns = { day: ["Day", (r) => r.day], user: ["User", (r) => r.user_id || "–"], agent: ["Agent", (r) => r.agent_id || "–"], model: ["Model", (r) => r.model || "(external agents)"] };

// Costs shows a report that is read now and then, and at once when a person chooses another.
export class Costs {
  constructor() {
    const select = (label, options, value) => el("select", { class: "select", "aria-label": label, onchange: () => this.read() }, ...Object.entries(options).map(([v, text]) => el("option", { value: v, text, selected: v === value })));
    this.by = select("Group by", { day: "by day", user: "by user", agent: "by agent", model: "by model" }, "model");
    this.days = select("Days", { 1: "today", 7: "7 days", 30: "30 days", 90: "90 days" }, "30");
    this.body = el("div", { "aria-live": "off" });
    this.root = el("section", {}, el("h2", { text: "Costs" }), el("div", { class: "filters" }, this.by, this.days), this.body);
    this.last = 0;
  }

  refresh() {
    return Date.now() - this.last < period ? null : this.read();
  }

  async read() {
    const [by, days] = [this.by.value, Number(this.days.value)];
    this.last = Date.now();
    try {
      const report = await request("GET", `/v1/usage?user=*&by=${by}&from=${day(days - 1)}&to=${day(0)}&limit=${rowsMax}`);
      if (by === this.by.value && days === Number(this.days.value)) this.show(report, by);
    } catch (e) {
      if (!e.status) throw e;
      this.body.replaceChildren(el("p", { class: "notice failed", role: "alert", text: visible(e.message) }));
    }
  }

  show({ rows, total, currency, next_cursor }, by) {
    if (rows.length === 0) {
      this.body.replaceChildren(el("p", { class: "muted", text: "No model has answered in this time." }));
      return;
    }
    const cost = (r) => (r.cost_micros === 0 && r.unpriced_tokens > 0 ? "no price" : money(r.cost_micros, currency));
    const sorted = by === "day" ? [...rows].reverse() : [...rows].sort((a, b) => b.cost_micros - a.cost_micros || b.total_tokens - a.total_tokens);
    const number = (name) => (r) => r[name].toLocaleString();
    const [title, name] = columns[by];
    const parts = [[title, (r) => (r === total ? "Total" : name(r))], ["Cost", cost, "number"], ["Tokens", number("total_tokens"), "number"], ["Input", number("input_tokens"), "number"], ["Cached", number("cached_tokens"), "number"], ["Output", number("output_tokens"), "number"],
      ["Answers", number("answers"), "number"], ["Runs", number("runs"), "number"]];
    const notes = [next_cursor && `the first ${rowsMax} rows: troupe usage --by ${by} --user '*' prints all`, total.unpriced_tokens > 0 && `${total.unpriced_tokens.toLocaleString()} tokens of models without a price are in no cost`,
      total.unmeasured_answers > 0 && `${total.unmeasured_answers.toLocaleString()} answers of models that report no tokens`].filter(Boolean);
    this.body.replaceChildren(table(parts, [...sorted, total]), notes.length ? el("p", { class: "muted small", text: visible(notes.join("; ")) }) : "");
  }
}
