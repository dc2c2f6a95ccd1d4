// SPDX-License-Identifier: Apache-2.0
// Agents, tools, keys and users with their state; and the figures of the server.

import { apiKey, request } from "./api.js";
import { Costs } from "./costs.js";
import { ago, el, visible } from "./dom.js";
import { chip, keepFocus, table, took } from "./format.js";

// metrics reads GET /metrics: samples {name, labels, value}.
async function metrics() {
  const answer = await fetch("/metrics", { headers: { Accept: "text/plain", ...(apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {}) } });
  if (!answer.ok) throw new Error(`the figures cannot be read: ${answer.status}`);
  const all = [];
  for (const line of (await answer.text()).split("\n")) {
    const m = /^troupe_(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!m) continue;
    const labels = Object.fromEntries([...(m[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, k, v]) => [k, v.replace(/\\(.)/g, "$1")]));
    all.push({ name: m[1], labels, value: Number(m[3]) });
  }
  return all;
}

// sums returns the sum of a metric by a label.
function sums(all, name, label) {
  const out = new Map();
  for (const s of all) if (s.name === name) out.set(s.labels[label] ?? "", (out.get(s.labels[label] ?? "") ?? 0) + s.value);
  return out;
}

// quantile returns the upper bound in ms of the bucket with a quantile of a histogram, for each value of a label.
function quantile(all, name, label, q) {
  const buckets = new Map();
  for (const s of all) {
    if (s.name !== `${name}_bucket`) continue;
    const key = s.labels[label] ?? "";
    if (!buckets.has(key)) buckets.set(key, []);
    buckets.get(key).push([s.labels.le === "+Inf" ? Infinity : Number(s.labels.le) * 1000, s.value]);
  }
  const out = new Map();
  for (const [key, list] of buckets) {
    list.sort((a, b) => a[0] - b[0]);
    const total = list.at(-1)?.[1] ?? 0;
    if (total > 0) out.set(key, list.find(([, n]) => n >= q * total)[0]);
  }
  return out;
}

const most = (ms) => (ms === undefined ? "" : ms === Infinity ? "over 1 h" : `≤ ${took(ms)}`);
const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(part === all ? 0 : 1)} %` : "");
const list = async (path, name) => (await request("GET", path).catch(() => null))?.[name] ?? null;

export class Parts {
  constructor(root) {
    this.root = el("div", {});
    root.append(this.root);
  }

  async refresh() {
    const [agents, tools, failed, recent, keys, samples] = await Promise.all([request("GET", "/v1/agents?limit=1000").then((a) => a.agents), list("/v1/tools?limit=1000", "tools"),
      list("/v1/runs?user=*&status=FAILED&limit=200", "runs"), list("/v1/runs?user=*&limit=200", "runs"), list("/v1/keys?limit=1000", "keys"), metrics()]);
    const last = new Map();
    for (const r of failed ?? []) if (!last.has(r.agent_id)) last.set(r.agent_id, r);
    const refusals = new Map();
    for (const s of samples) if (s.name === "tool_calls_total" && s.labels.outcome !== "ok" && s.value > 0) refusals.set(s.labels.tool, [...(refusals.get(s.labels.tool) ?? []), `${s.labels.outcome} ${s.value}`]);
    const users = new Map();
    for (const r of recent ?? []) {
      const u = users.get(r.principal) ?? { name: r.principal ?? "", runs: 0, tokens: 0, last: r.created_at };
      u.runs++;
      u.tokens += r.tree_usage?.total_tokens ?? 0;
      users.set(r.principal, u);
    }
    const failure = (a) => (last.has(a.agent_id) ? `${last.get(a.agent_id).error?.code ?? "failed"}, ${ago(Date.parse(last.get(a.agent_id).created_at))}` : "");
    const section = (title, content) => el("section", {}, el("h2", { text: title }), content);
    const none = (text) => el("p", { class: "muted", text });
    keepFocus(this.root, section("Agents", table([["Agent", (a) => a.agent_id], ["Kind", (a) => a.kind], ["Health", (a) => chip(a.status)], ["Circuit", (a) => a.circuit ?? ""], ["Runs", (a) => String(a.served_runs ?? ""), "number"], ["Last failure", failure], ["", (a) => a.doc ?? ""]], agents, (a) => `#runs?agent_id=${encodeURIComponent(a.agent_id)}`)),
      section("Tools", tools?.length ? table([["Tool", (t) => t.tool_name], ["Runs", (t) => t.kind === "client_tool" ? "on a device" : (t.via ?? "")], ["Policy", (t) => t.policy ?? ""], ["Failures since the start", (t) => (refusals.get(t.tool_name) ?? []).join(", ")], ["", (t) => t.description ?? ""]], tools) : none("No tools are declared.")),
      section("MCP servers", mcp(samples) ?? none("None is configured.")),
      section("Keys", keys ? (keys.length ? table([["Key", (k) => k.key_id ?? k.id ?? ""], ["Name", (k) => k.name ?? ""], ["User", (k) => k.user ?? ""], ["Scopes", (k) => (k.scopes ?? []).join(", ")], ["Expires", (k) => k.expires_at ?? ""]], keys) : none("There is none.")) : none("A list of keys needs a key with the scope admin.")),
      section("Users of the last 200 runs", table([["User", (u) => u.name], ["Runs", (u) => String(u.runs), "number"], ["Tokens", (u) => u.tokens.toLocaleString(), "number"], ["Last run", (u) => ago(Date.parse(u.last)), "number"]], [...users.values()], (u) => `#runs?user=${encodeURIComponent(u.name)}`)));
  }
}

function mcp(samples) {
  const value = (name) => sums(samples, name, "server");
  const up = value("mcp_server_up"), count = value("mcp_server_tools"), changed = value("mcp_server_list_changed");
  if (up.size === 0) return null;
  return table([["Server", (s) => s], ["State", (s) => chip(up.get(s) ? "healthy" : "unhealthy")], ["Tools", (s) => String(count.get(s) ?? 0), "number"], ["", (s) => (changed.get(s) ? `changed tools wait for: troupe tools accept ${s}` : "")]], [...up.keys()]);
}

export class Numbers {
  constructor(root) {
    this.root = el("div", {});
    this.costs = new Costs();
    root.append(el("h1", { text: "Numbers" }), this.costs.root, el("section", {}, el("h2", { text: "Since the start of this server" }), this.root));
  }

  async refresh() {
    const [all] = await Promise.all([metrics(), this.costs.refresh()]);
    const one = (name) => all.find((s) => s.name === name)?.value;
    const ended = sums(all, "runs_ended_total", "status");
    const total = [...ended.values()].reduce((a, b) => a + b, 0), done = ended.get("DONE") ?? ended.get("done") ?? 0;
    const tokens = sums(all, "agent_tokens_total", "direction");
    const tile = (name, value, note) => el("div", { class: "tile" }, el("span", { class: "muted small", text: name }), el("b", { text: value }), el("span", { class: "muted small", text: note ?? "" }));
    const waiting = one("approvals_waiting");
    const agents = [...sums(all, "agent_runs_total", "agent").entries()].filter(([, n]) => n > 0).map(([name, n]) => ({ name, n }));
    const p95 = quantile(all, "agent_run_duration_seconds", "agent", 0.95);
    const good = new Map();
    for (const s of all) if (s.name === "agent_runs_total" && s.labels.status.toUpperCase() === "DONE") good.set(s.labels.agent, s.value);
    const spent = sums(all, "agent_tokens_total", "agent");
    const calls = sums(all, "tool_calls_total", "tool"), toolP95 = quantile(all, "tool_duration_seconds", "tool", 0.95), okCalls = new Map();
    for (const s of all) if (s.name === "tool_calls_total" && s.labels.outcome === "ok") okCalls.set(s.labels.tool, s.value);
    const hooks = sums(all, "webhook_waiting", "webhook"), age = sums(all, "webhook_oldest_seconds", "webhook");
    this.root.replaceChildren(el("div", { class: "tiles" },
      tile("Runs ended", total.toLocaleString(), `${ended.get("FAILED") ?? ended.get("failed") ?? 0} failed`), tile("Success", percent(done, total) || "–"),
      tile("Waiting approvals", waiting === undefined ? "–" : waiting.toLocaleString(), waiting ? `the oldest for ${took(1000 * one("approval_oldest_seconds"))}` : ""),
      tile("Tokens", ((tokens.get("input") ?? 0) + (tokens.get("output") ?? 0)).toLocaleString(), `${(tokens.get("output") ?? 0).toLocaleString()} of them output`),
      tile("Unknown outcomes", String(one("outcomes_unknown_total") ?? 0)), tile("Actors in memory", [...sums(all, "actors", "cell").values()].reduce((a, b) => a + b, 0).toLocaleString())),
    el("section", {}, el("h2", { text: "Agents" }), table([["Agent", (a) => a.name], ["Runs", (a) => a.n.toLocaleString(), "number"], ["Success", (a) => percent(good.get(a.name) ?? 0, a.n), "number"], ["95 % of runs took", (a) => most(p95.get(a.name)), "number"], ["Tokens", (a) => (spent.get(a.name) ?? 0).toLocaleString(), "number"]], agents)),
    el("section", {}, el("h2", { text: "Tools" }), table([["Tool", ([name]) => name], ["Calls", ([, n]) => n.toLocaleString(), "number"], ["Success", ([name, n]) => percent(okCalls.get(name) ?? 0, n), "number"], ["95 % of calls took", ([name]) => most(toolP95.get(name)), "number"]], [...calls.entries()])),
    hooks.size ? el("section", {}, el("h2", { text: "Webhooks" }), table([["Webhook", ([name]) => name], ["Waiting deliveries", ([, n]) => String(n), "number"], ["Oldest", ([name]) => took(1000 * (age.get(name) ?? 0)), "number"]], [...hooks.entries()])) : null ?? "");
  }

  failed(e) {
    this.root.replaceChildren(el("p", { class: "notice failed", role: "alert", text: visible(e.message) }));
  }
}
