// SPDX-License-Identifier: Apache-2.0
// One run with the runs below it: tree, times, events, tools and tokens, as they were at any event.

import { request, troupe } from "./api.js";
import { el, json, visible } from "./dom.js";
import { currency, money } from "./costs.js";
import { chip, refusal, table, took } from "./format.js";

const rowHeight = 28; // px of an event, as in the style
const openRoom = 8; // rows that are shown beyond the visible ones

// fold returns the runs of a tree by id, in call order, as of the first n events.
export function fold(events, n) {
  const runs = new Map();
  for (let i = 0; i < n; i++) apply(runs, events[i]);
  return runs;
}

// apply changes the runs of a tree by their next event.
function apply(runs, e) {
  const p = e.payload ?? {};
  let r = runs.get(e.run_id);
  if (!r) runs.set(e.run_id, (r = { id: e.run_id, agent: "", depth: 0, status: "QUEUED", from: e.ts, to: "", tools: new Map(), input: 0, output: 0, cost: 0, answer: "" }));
  r.last = e.ts;
  switch (e.type) {
    case "user_input":
      r.message = p.text;
      r.agent ||= agentOf(p);
      break;
    case "run_started":
      r.status = "RUNNING";
      r.agent ||= agentOf(p);
      r.depth = p.call_depth ?? 0;
      break;
    case "agent_called_child": {
      const child = p.child_run_id;
      if (child && !runs.has(child)) runs.set(child, { id: child, agent: agentOf(p), depth: (r.depth ?? 0) + 1, status: "QUEUED", from: e.ts, to: "", tools: new Map(), input: 0, output: 0, cost: 0, answer: "" });
      break;
    }
    case "run_paused":
      r.status = p.name === "parked" ? "Parked" : "PAUSED_WAITING_APPROVAL";
      break;
    case "approval_created":
      r.status = "PAUSED_WAITING_APPROVAL";
      tool(r, p).state = "waits";
      break;
    case "approval_decision":
    case "approval_expired":
    case "run_resumed":
      r.status = "RUNNING";
      if (p.kind) tool(r, p).state = p.kind.toLowerCase();
      break;
    case "tool_call_created":
      Object.assign(tool(r, p), { state: "created", args: p.text, from: e.ts });
      break;
    case "policy_decision":
      tool(r, p).rule = `${p.kind}${p.text ? `: ${p.text}` : ""}`;
      break;
    case "tool_dispatched":
      tool(r, p).state = "running";
      break;
    case "tool_result":
      Object.assign(tool(r, p), { state: p.error ? p.error.code : "done", result: p.error ? p.error.detail : p.text, took: p.took_ms });
      break;
    case "llm_call_done":
    case "agent_invoke_done":
      r.input += p.usage?.input_tokens ?? 0;
      r.output += p.usage?.output_tokens ?? 0;
      r.cost += p.usage?.cost_micros ?? 0;
      break;
    case "llm_call_started":
    case "agent_invoke_started":
      if (!p.request_id) r.answer = "";
      break;
    case "agent_stream_delta":
      r.answer += p.text ?? "";
      break;
    case "run_done":
    case "run_failed":
    case "run_cancelled":
      r.status = { run_done: "DONE", run_failed: "FAILED", run_cancelled: "CANCELLED" }[e.type];
      r.to = e.ts;
      r.answer = p.error ? `${p.error.code}: ${p.error.detail ?? ""}` : (p.text ?? r.answer);
      break;
  }
}

const agentOf = (p) => p.agent_id ?? (p.actor ?? "").split("/").at(-2) ?? "";

function tool(run, p) {
  const key = `${p.step}.${p.index ?? 0}`;
  if (!run.tools.has(key)) run.tools.set(key, { name: p.name });
  return run.tools.get(key);
}

export class RunPage {
  constructor(root, { rest: [id, space], setState }) {
    Object.assign(this, { id, space, setState, events: [], now: new Map(), cut: null, of: "", tab: "Events" });
    this.title = el("h1", { text: "Run" });
    this.facts = el("p", { class: "muted small" });
    this.act = el("div", { class: "row" });
    this.error = el("p", { class: "error-text", role: "alert" });
    this.tree = el("div", { class: "tree", role: "group", "aria-label": "Runs of the tree: choose one to see its events only" });
    this.slider = el("input", { type: "range", min: "1", max: "1", value: "1", "aria-label": "Show the state after this event", oninput: () => this.seek(Number(this.slider.value)) });
    this.place = el("span", { class: "muted small" });
    this.live = el("button", { class: "button quiet small", type: "button", text: "Latest", hidden: true, onclick: () => this.seek(null) });
    this.pick = el("div", { class: "pick" });
    this.panel = el("div", {});
    this.list = new EventList();
    this.prompts = new TreePrompts(space);
    this.answer = el("pre", { class: "args", tabindex: "0", "aria-label": "Answer" });
    root.append(el("p", { class: "small" }, el("a", { href: "#runs", text: "← Runs" })), el("div", { class: "item-head" }, this.title, this.act), this.facts, this.error, this.answer, this.tree,
      el("div", { class: "replay" }, this.slider, this.place, this.live), this.pick, this.panel);
    this.stream = troupe.events(`/v1/runs/${id}/events?user=${space}`, { runId: id, tree: true, patience: Infinity, onState: setState });
    this.read().catch((e) => this.failed(e));
  }

  // read follows the events until the run has ended or the page is closed.
  async read() {
    for await (const e of this.stream) {
      this.events.push(e);
      apply(this.now, e);
      if (e.run_id === this.id) this.principal ??= e.payload?.principal;
      this.schedule();
    }
  }

  close() {
    this.closed = true;
    this.stream.close();
    this.list.close();
  }

  // refresh has nothing to read: the stream brings it.
  async refresh() {}

  failed(e) {
    this.error.textContent = refusal(e);
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => {
      this.scheduled = false;
      if (!this.closed) this.show();
    }, this.stream.last || this.events.length < 1000 ? 30 : 250); // a long run arrives in many parts
  }

  seek(n) {
    this.cut = n === null || n >= this.events.length ? null : n;
    this.show();
  }

  show() {
    const n = this.cut ?? this.events.length;
    const runs = this.cut === null ? this.now : fold(this.events, n);
    const root = runs.get(this.id);
    if (!root) return;
    this.slider.max = this.events.length;
    this.slider.value = n;
    const at = this.events[n - 1];
    this.place.textContent = `event ${n.toLocaleString()} of ${this.events.length.toLocaleString()} · ${new Date(at.ts).toLocaleTimeString()}`;
    this.live.hidden = this.cut === null;
    this.title.replaceChildren(visible(root.agent || "Run"), " ", chip(root.status));
    const sum = (of) => [...runs.values()].reduce((all, r) => all + of(r), 0);
    const spent = sum((r) => r.input + r.output), cost = sum((r) => r.cost);
    if (cost && this.currency === undefined) {
      this.currency = "";
      currency().then((name) => ((this.currency = name), this.schedule()));
    }
    this.facts.textContent = visible([this.principal && `for ${this.principal}`, `run ${this.id}`, `${runs.size} run${runs.size === 1 ? "" : "s"}`, spent && `${spent.toLocaleString()} tokens`, cost && money(cost, this.currency), took(Date.parse(root.to || at.ts) - Date.parse(root.from))].filter(Boolean).join(" · "));
    this.answer.textContent = visible(root.answer || root.message || "");
    this.showActions(root);
    this.showTree(runs, Date.parse(root.from), Date.parse(at.ts));
    const tabs = { Events: this.events.length, Tools: [...runs.values()].reduce((sum, r) => sum + r.tools.size, 0), Tokens: null, Prompts: null };
    this.pick.replaceChildren(...Object.entries(tabs).map(([name, count]) => el("button", { class: "button quiet small", type: "button", "aria-pressed": String(this.tab === name), text: count === null ? name : `${name} (${count.toLocaleString()})`, onclick: () => {
      this.tab = name;
      this.show();
    } })));
    const shown = this.of ? new Map([[this.of, runs.get(this.of)]].filter(([, r]) => r)) : runs;
    if (this.tab === "Events") {
      this.list.set(this.of ? this.events.slice(0, n).filter((e) => e.run_id === this.of) : this.events, this.of ? Infinity : n, runs);
      if (this.panel.firstChild !== this.list.root) this.panel.replaceChildren(this.list.root);
    } else if (this.tab === "Tools") {
      this.panel.replaceChildren(table([["Agent", (t) => t.agent], ["Tool", (t) => t.name ?? ""], ["State", (t) => el("span", { class: "chip", text: visible(t.state ?? "") })], ["Rule", (t) => t.rule ?? ""], ["Arguments", (t) => t.args ?? "", "mono wrap"], ["Result", (t) => t.result ?? "", "mono wrap"], ["Took", (t) => took(t.took), "number"]],
        [...shown.values()].flatMap((r) => [...r.tools.values()].map((t) => ({ ...t, agent: r.agent })))));
    } else if (this.tab === "Prompts") {
      this.prompts.show(shown);
      if (this.panel.firstChild !== this.prompts.root) this.panel.replaceChildren(this.prompts.root);
    } else {
      this.panel.replaceChildren(table([["Agent", (r) => r.agent], ["Input", (r) => r.input.toLocaleString(), "number"], ["Output", (r) => r.output.toLocaleString(), "number"], ["Total", (r) => (r.input + r.output).toLocaleString(), "number"], ["Cost", (r) => (r.cost ? money(r.cost, this.currency) : ""), "number"]], [...shown.values()]));
    }
  }

  showActions(root) {
    const verbs = this.cut !== null || root.to ? [] : root.status === "Parked" ? ["retry", "cancel"] : ["cancel"];
    if (this.verbs === verbs.join()) return;
    this.verbs = verbs.join();
    this.act.replaceChildren(...verbs.map((verb) => el("button", { class: `button small ${verb === "cancel" ? "danger" : "primary"}`, type: "button", text: verb === "cancel" ? "Cancel" : "Retry", onclick: async () => {
      try {
        await request("POST", `/v1/runs/${this.id}:${verb}?user=${this.space}`, verb === "cancel" ? {} : undefined);
        this.error.textContent = "";
      } catch (e) {
        this.failed(e);
      }
    } })));
  }

  showTree(runs, from, to) {
    const room = Math.max(to - from, 1);
    const focused = [...this.tree.children].indexOf(document.activeElement);
    this.tree.replaceChildren(...[...runs.values()].slice(0, 500).map((r) => {
      const line = el("span", { class: "line", "data-tone": r.status === "FAILED" ? "danger" : r.status === "DONE" || r.status === "RUNNING" ? "" : "warn", "aria-hidden": "true" }, el("i"));
      line.firstChild.style.setProperty("--from", (Date.parse(r.from) - from) / room);
      line.firstChild.style.setProperty("--width", (Date.parse(r.to || (r.status === "QUEUED" ? r.from : to)) - Date.parse(r.from) || 0) / room);
      const name = el("span", { class: "branch-name cut", text: visible(r.agent || r.id) });
      name.style.setProperty("--depth", r.depth);
      if (!r.to) line.firstChild.style.setProperty("--width", Math.max(0, to - Date.parse(r.from)) / room);
      return el("button", { class: "branch", type: "button", "data-step": true, "aria-pressed": String(this.of === r.id), onclick: () => {
        this.of = this.of === r.id ? "" : r.id;
        this.show();
      } }, name, el("span", {}, chip(r.status)), line);
    }));
    if (focused >= 0) this.tree.children[focused]?.focus({ preventScroll: true });
  }
}

const promptRunsMax = 20; // runs of a tree whose prompts are shown together

// TreePrompts shows what models were sent for the runs of a tree, in call order, or for the one that was chosen.
export class TreePrompts {
  constructor(space) {
    this.space = space;
    this.lists = new Map();
    this.note = el("p", { class: "muted small", role: "status" });
    this.groups = el("div", {});
    this.root = el("div", {}, this.groups, this.note);
  }

  show(runs) {
    const all = [...runs.values()].slice(0, promptRunsMax);
    for (const r of all) {
      if (!this.lists.has(r.id)) this.lists.set(r.id, new PromptList(this.space));
      this.lists.get(r.id).show(r.id, Boolean(r.to));
    }
    this.note.textContent = runs.size > all.length ? `Of ${runs.size.toLocaleString()} runs the first ${promptRunsMax} are shown: choose a run above for its prompts.` : "";
    const ids = all.map((r) => r.id).join();
    if (this.ids === ids) return;
    this.ids = ids;
    this.groups.replaceChildren(...all.map((r) => el("section", {}, ...(all.length > 1 ? [el("h3", { class: "small", text: visible(`${r.agent || "Run"} · ${r.id}`) })] : []), this.lists.get(r.id).root)));
  }
}

// PromptList shows what models were sent for a run: the requests that have ended, read once, and again on demand.
export class PromptList {
  constructor(space) {
    this.space = space;
    this.note = el("p", { class: "muted small", role: "status" });
    this.list = el("div", {});
    this.more = el("button", { class: "button quiet small", type: "button", text: "Read on", hidden: true, onclick: () => this.read() });
    this.root = el("div", {}, this.note, this.list, this.more);
  }

  // show shows the prompts of a run. One that has not ended may have more later.
  show(run, ended) {
    this.ended = ended;
    if (this.run === run) return;
    Object.assign(this, { run, after: 0 });
    this.list.replaceChildren();
    this.read();
  }

  async read() {
    const { run, ended } = this;
    this.more.hidden = true;
    try {
      const page = await request("GET", `/v1/runs/${run}/prompts?after=${this.after}&limit=20&user=${this.space}`);
      if (run !== this.run) return;
      for (const p of page.prompts) {
        this.after = p.step;
        this.list.append(promptCard(p));
      }
      this.more.hidden = ended && !page.next_after;
      this.note.textContent = this.list.children.length ? "" : noneRecorded(page.recording);
    } catch (e) {
      if (run !== this.run) return;
      this.more.hidden = false;
      this.note.textContent = visible(e.message);
    }
  }
}

// noneRecorded says why a run has no prompts.
function noneRecorded(recording) {
  switch (recording) {
    case "off": return "Nothing is recorded: set prompts in [record] of the configuration.";
    case "failed": return "Nothing is recorded for this run: prompts of a run that succeeded are not kept.";
  }
  return "Nothing is recorded for this run.";
}

// promptCard shows one request, whose long parts are made when it is opened.
function promptCard(p) {
  const facts = [p.model, p.provider_model !== p.model && p.provider_model, p.status, p.error?.code, took(p.took_ms), p.usage && `${p.usage.total_tokens.toLocaleString()} tokens`, p.cut_bytes && `${p.cut_bytes.toLocaleString()} bytes cut`];
  const card = el("details", { class: "card-details" }, el("summary", { text: visible(`${p.step} · ${facts.filter(Boolean).join(" · ")}`) }));
  card.ontoggle = () => {
    card.ontoggle = null;
    const part = (name, value) => value !== undefined && card.append(el("p", { class: "muted small", text: visible(name) }), el("pre", { class: "args", tabindex: "0", "aria-label": visible(name), text: visible(typeof value === "string" ? value : json(value)) }));
    const asked = p.request && typeof p.request === "object" && !Array.isArray(p.request) ? p.request : { request: p.request };
    const { messages, tools, ...parameters } = asked;
    part("Parameters", parameters);
    if (tools !== undefined) part(`Tools (${tools.length ?? ""})`, tools);
    for (const m of Array.isArray(messages) ? messages : []) part(String(m?.role ?? "message"), typeof m?.content === "string" && !m.tool_calls ? m.content : m);
    part("Answer", p.answer?.tool_calls || p.answer?.reasoning ? p.answer : p.answer?.text);
    part("Error", p.error && `${p.error.code}: ${p.error.detail}`);
  };
  return card;
}

// EventList shows events, of which only the visible rows are elements.
class EventList {
  constructor() {
    this.room = el("div", { class: "events-room" });
    this.box = el("div", { class: "events", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Events", onscroll: () => this.draw() }, this.room);
    this.detail = el("pre", { class: "args", tabindex: "0", hidden: true, "aria-label": "Event" });
    this.root = el("div", {}, this.box, this.detail);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.box);
    this.events = [];
  }

  close() {
    this.resized.disconnect();
  }

  set(events, cut, runs) {
    const atEnd = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - rowHeight;
    Object.assign(this, { events, cut: Math.min(cut, events.length), runs });
    this.room.style.setProperty("height", `${this.cut * rowHeight}px`);
    if (atEnd) this.box.scrollTop = this.box.scrollHeight;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / rowHeight) - openRoom);
    const last = Math.min(this.cut ?? 0, Math.ceil((this.box.scrollTop + this.box.clientHeight) / rowHeight) + openRoom);
    this.room.replaceChildren(...this.events.slice(first, last).map((e, i) => {
      const row = el("button", { class: "event", type: "button", "aria-current": this.open === e && "true", onclick: () => this.choose(e) },
        el("span", { class: "muted", text: e.ts.slice(11, 23) }), el("span", { text: visible(this.runs.get(e.run_id)?.agent ?? "") }), el("span", { text: visible(e.type) }), el("span", { class: "muted", text: visible(brief(e)) }));
      row.style.setProperty("top", `${(first + i) * rowHeight}px`);
      return row;
    }));
  }

  choose(e) {
    this.open = this.open === e ? null : e;
    this.detail.hidden = !this.open;
    this.detail.textContent = this.open ? visible(json(e)) : "";
    this.draw();
  }
}

const briefRoom = 200; // characters of a text in the row of its event

// brief returns what the row of an event shows of its payload. Choosing the row shows all of it.
export const brief = (e) => {
  const p = e.payload ?? {}, text = p.text ?? "";
  const kind = e.type === "run_started" && p.kind === "waiting" ? "" : p.kind; // a call whose caller waits, as nearly all do
  return [p.name, kind, p.error?.code, text.length > briefRoom || p.truncated ? text.slice(0, briefRoom) + "…" : text].filter(Boolean).join(" · ");
};
