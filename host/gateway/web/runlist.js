// SPDX-License-Identifier: Apache-2.0
// The runs of all users, newest first, with filters.

import { request } from "./api.js";
import { ago, el, visible } from "./dom.js";
import { chip, keepFocus, runLink, spaceOf, statusOf, table, tokens, took } from "./format.js";

const pageSize = 50;
const statuses = ["RUNNING", "QUEUED", "PAUSED_WAITING_APPROVAL", "DONE", "FAILED", "CANCELLED"];

export class RunList {
  constructor(root, { query }) {
    this.query = query;
    this.runs = new Map(); // by id, newest first
    this.next = "";
    const field = (name, label, type = "text") => el("input", { class: "input", type, name, placeholder: label, "aria-label": label, value: query.get(name) ?? "", autocomplete: "off", spellcheck: "false", onchange: () => this.apply() });
    const status = el("select", { class: "select", name: "status", "aria-label": "Status", onchange: () => this.apply() }, el("option", { value: "", text: "Any status" }),
      ...statuses.map((s) => el("option", { value: s, text: s === "PAUSED_WAITING_APPROVAL" ? "waiting or parked" : s.toLowerCase(), selected: query.get("status") === s })));
    this.search = el("input", { class: "input", type: "search", placeholder: "Search in what is shown", "aria-label": "Search in what is shown", oninput: () => this.show() });
    this.form = el("form", { class: "filters", onsubmit: (e) => { e.preventDefault(); this.apply(); } }, field("user", "User (all)"), field("agent_id", "Agent"), field("session_id", "Session"), status, this.search, el("button", { class: "visually-hidden", type: "submit", text: "Apply", tabindex: "-1" }));
    this.body = el("div", {});
    this.more = el("button", { class: "button quiet", type: "button", text: "Older", hidden: true, onclick: () => this.older() });
    root.append(el("h1", { text: "Runs" }), this.form, this.body, this.more);
  }

  // apply names the filters in the address, which opens the list with them.
  apply() {
    const all = new URLSearchParams([...new FormData(this.form)].filter(([, value]) => value));
    location.hash = `#runs${all.size ? `?${all}` : ""}`;
  }

  path(cursor) {
    const all = { user: "*", limit: pageSize, ...Object.fromEntries(this.query), ...(cursor && { cursor }) };
    return `/v1/runs?${Object.entries(all).map(([name, value]) => `${name}=${value}`).join("&")}`;
  }

  async refresh() {
    const page = await request("GET", this.path(""));
    if (this.runs.size === 0) this.next = page.next_cursor ?? "";
    this.add(page.runs);
  }

  async older() {
    const page = await request("GET", this.path(this.next));
    this.next = page.next_cursor ?? "";
    this.add(page.runs);
  }

  add(runs) {
    for (const r of runs) this.runs.set(r.run_id, r);
    this.runs = new Map([...this.runs].sort(([a], [b]) => (a < b ? 1 : -1)));
    this.show();
  }

  show() {
    const words = this.search.value.toLowerCase();
    const shown = [...this.runs.values()].filter((r) => !words || JSON.stringify([r.run_id, r.agent_id, r.principal, r.session_id, r.text, r.error?.code]).toLowerCase().includes(words));
    this.more.hidden = !this.next;
    if (shown.length === 0) {
      this.body.replaceChildren(el("p", { class: "empty", text: "No runs." }));
      return;
    }
    keepFocus(this.body, table([
      ["Status", (r) => chip(statusOf(r))],
      ["Agent", (r) => r.agent_id],
      ["User", (r) => r.principal ?? ""],
      ["Answer", (r) => r.error ? `${r.error.code}: ${r.error.detail ?? r.error.message ?? ""}` : (r.text ?? "")],
      ["Tokens", (r) => tokens(r.tree_usage), "number"],
      ["Took", (r) => (r.ended_at ? took(Date.parse(r.ended_at) - Date.parse(r.created_at)) : ""), "number"],
      ["Created", (r) => ago(Date.parse(r.created_at)), "number"],
    ], shown, (r) => runLink(r.run_id, spaceOf(r.actor))));
  }

  failed(e) {
    this.body.replaceChildren(el("p", { class: "notice failed", role: "alert", text: visible(e.message) }));
  }
}
