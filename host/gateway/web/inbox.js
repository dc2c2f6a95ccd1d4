// SPDX-License-Identifier: Apache-2.0
// What waits for a person: approvals, questions of client tools, runs that wait for a signal and parked runs, of all users.

import { request } from "./api.js";
import { currency, money } from "./costs.js";
import { RaiseFields } from "./raise.js";
import { ago, announce, el, json, visible } from "./dom.js";
import { chip, keepFocus, refusal, runLink, spaceOf, statusOf, tokens, until } from "./format.js";

const pageSize = 200;
const goneMax = 20; // decided cards that stay in the list
const messagesShown = 20;

export class Inbox {
  constructor(root, app) {
    this.app = app;
    this.items = new Map(); // by id, in the order of the list
    this.pages = 1;
    this.list = el("div", { class: "list", role: "list", "aria-label": "What waits" });
    this.more = el("button", { class: "button quiet", type: "button", text: "More", hidden: true, onclick: () => {
      this.pages++;
      this.refresh();
    } });
    this.detail = el("div", { "aria-live": "off" });
    this.first = true;
    root.append(el("h1", { text: "Inbox" }), el("div", { class: "inbox" }, el("div", {}, this.list, this.more), this.detail));
    this.ticker = setInterval(() => this.tick(), 1000);
  }

  close() {
    clearInterval(this.ticker);
  }

  async refresh() {
    const found = [];
    let cursor = "";
    for (let i = 0; i < this.pages; i++) {
      const page = await request("GET", `/v1/approvals?user=*&limit=${pageSize}${cursor && `&cursor=${cursor}`}`);
      found.push(...page.approvals.map((a) => ({ id: a.approval_id, kind: "approval", title: titleOf(a), agent: a.agent_id, user: a.principal, space: spaceOf(a.actor), at: a.created_at, until: a.expires_at, approval: a })));
      if (!(cursor = page.next_cursor ?? "")) break;
    }
    this.more.hidden = !cursor;
    const { tool_calls } = await request("GET", `/v1/tool_calls?user=*&limit=${pageSize}`);
    found.push(...tool_calls.map((c) => ({ id: c.tool_call_id, kind: "question", title: questionOf(c) || c.tool_name, agent: c.agent_id, user: c.principal, space: spaceOf(c.actor), at: c.created_at, until: c.expires_at, call: c })));
    const { runs } = await request("GET", `/v1/runs?user=*&status=PAUSED_WAITING_APPROVAL&limit=${pageSize}`);
    for (const r of runs) {
      const [wait] = r.waiting_for ?? [];
      const common = { agent: r.agent_id, user: r.principal, space: spaceOf(r.actor), at: r.created_at, run: r };
      if (wait) found.push({ ...common, id: `${r.run_id} ${wait.name} ${wait.until}`, kind: "signal", title: `Waits for ${wait.name}`, until: wait.until });
      if (r.agent_state !== "Parked") continue;
      found.push({ ...common, id: r.run_id, kind: "parked", title: "Parked run" });
    }
    const next = new Map(found.map((f) => [f.id, this.items.get(f.id) ?? f]));
    const gone = [...this.items.values()].filter((item) => !next.has(item.id) && (cursor === "" || item.gone));
    for (const item of gone) if (!item.gone) this.settle(item);
    const fresh = found.filter((f) => !this.items.has(f.id));
    this.items = new Map([...next, ...gone.slice(-goneMax).map((g) => [g.id, g])]);
    if (fresh.length && !this.first) announce(visible(`${fresh[0].title} waits, asked by ${fresh[0].agent}`));
    this.first = false;
    this.show();
    if (!this.selected && found.length) this.select(found[0], false);
  }

  // settle shows how an item ended that somebody has decided elsewhere.
  async settle(item) {
    item.gone = "…";
    if (item.kind === "question") {
      const c = await request("GET", `/v1/tool_calls/${encodeURIComponent(item.id)}?user=${item.space}`).catch(() => null);
      item.ok = c?.state === "SUCCEEDED";
      item.gone = item.ok ? "Answered" : c?.error ? `Not answered: ${c.error.message}` : "ended";
    } else if (item.kind !== "approval") item.gone = "continued or ended";
    else {
      const a = await request("GET", `/v1/approvals/${encodeURIComponent(item.id)}?user=${item.space}`).catch(() => null);
      item.ok = a?.status === "APPROVED";
      item.gone = a ? outcome(a) : "ended";
    }
    this.show();
    if (this.selected === item) item.card?.finish(item.gone, item.ok);
  }

  show() {
    if (this.items.size === 0) {
      this.list.replaceChildren(el("p", { class: "empty", text: "Nothing waits for a person." }));
      return;
    }
    keepFocus(this.list, ...[...this.items.values()].map((item) => el("button", { class: "item", type: "button", role: "listitem", "data-step": true, "data-gone": Boolean(item.gone), "aria-current": this.selected === item && "true",
      onclick: () => this.select(item, true), onfocus: () => this.selected !== item && this.select(item, false) },
      el("span", { class: "item-head" }, el("strong", { text: visible(item.title) }), el("span", { class: "muted small", text: ago(Date.parse(item.at)) })),
      item.approval?.args_summary ? el("span", { class: "small cut", text: visible(item.approval.args_summary) }) : null,
      el("span", { class: "muted small cut", text: visible(`${item.agent} for ${item.user ?? "?"}`) }),
      el("span", { class: "small", text: item.gone ? visible(item.gone) : (item.until ? until(item.until) : "waits for retry or cancel") }))));
  }

  select(item, focus) {
    this.selected = item;
    this.show();
    item.card = new { approval: ApprovalCard, question: QuestionCard, parked: ParkedCard, signal: SignalCard }[item.kind](item, this.app);
    this.detail.replaceChildren(item.card.root);
    if (item.gone) item.card.finish(item.gone, item.ok);
    if (focus && matchMedia("(max-width: 760px)").matches) this.detail.scrollIntoView();
  }

  failed(e) {
    this.detail.replaceChildren(el("p", { class: "notice failed", role: "alert", text: e.message }));
  }

  tick() {
    this.selected?.card?.tick();
  }
}

// spent returns tokens and costs as text.
function spent(usages, currency) {
  const sum = (name) => usages.reduce((all, u) => all + (u?.[name] ?? 0), 0);
  const cost = sum("cost_micros");
  return [tokens({ total_tokens: sum("total_tokens") }) && `${tokens({ total_tokens: sum("total_tokens") })} tokens`, cost && money(cost, currency)].filter(Boolean).join(", ") || "nothing";
}

// questionOf returns the question of a client tool, as the chat page shows it.
const questionOf = (c) => (typeof c.args?.question === "string" ? c.args.question : "");

const isBudget = (a) => a.kind === "budget";
const titleOf = (a) => (isBudget(a) ? `Budget for ${a.tool_name}` : a.tool_name);

const outcome = (a) => [{ APPROVED: "Approved", REJECTED: "Rejected", EXPIRED: "Expired" }[a.status] ?? a.status, a.decided_by ? ` by ${a.decided_by}` : "", a.reason ? `: ${a.reason}` : ""].join("");

// Card shows an item with what is needed to decide about it.
class Card {
  constructor(item, app, title) {
    this.item = item;
    this.app = app;
    this.note = el("span", { class: "muted small" });
    this.facts = el("dl", { class: "facts" });
    this.error = el("p", { class: "error-text", role: "alert" });
    this.root = el("article", { class: "card", "aria-label": visible(title) }, el("div", { class: "card-head" }, el("h2", { text: visible(title) }), this.note), this.facts);
  }

  fact(name, ...content) {
    this.facts.append(el("dt", { text: name }), el("dd", {}, ...content.map((c) => (typeof c === "string" ? visible(c) : c))));
  }

  finish(text, ok) {
    this.form?.remove();
    this.item.gone ??= text;
    this.root.dataset.state = ok ? "ok" : "failed";
    this.note.textContent = "";
    this.result ??= this.root.appendChild(el("p", { class: "card-result", role: "status" }));
    this.result.textContent = visible(text);
  }

  tick() {}
}

class ApprovalCard extends Card {
  constructor(item, app) {
    const a = item.approval;
    super(item, app, titleOf(a));
    this.path = el("span", { text: a.agent_id });
    this.cost = el("span", { text: "…" });
    this.effect = el("span", { text: "…" });
    this.fact("Asked for", a.principal ?? "");
    this.fact("Path", this.path);
    if (a.args_summary) this.fact(isBudget(a) ? "Why" : "What", a.args_summary);
    this.fact("If approved", this.effect);
    this.fact("Spent so far", this.cost);
    this.fact("Run", el("a", { href: runLink(a.root_run_id, item.space), text: a.root_run_id }));
    const reason = el("input", { type: "text", class: "input", maxlength: "1000", placeholder: "Reason (optional)", "aria-label": "Reason" });
    const buttons = [["Approve", "primary", "approve"], ["Reject", "danger", "reject"]].map(([text, kind, decision]) =>
      el("button", { class: `button ${kind}`, type: "button", text: isBudget(a) && decision === "approve" ? "Raise the budget" : text, onclick: () => this.decide(decision, reason.value.trim()) }));
    if (isBudget(a)) this.raise = new RaiseFields(a);
    this.form = el("div", {}, this.raise?.root ?? "", reason, el("div", { class: "row" }, ...buttons), this.error);
    this.form.className = "form";
    this.said = el("div", {});
    this.root.append(el("pre", { class: "args", tabindex: "0", "aria-label": isBudget(a) ? "Request to the model" : "Arguments", text: visible(json(a.args)) }), this.form,
      el("details", { ontoggle: (e) => e.target.open && this.showConversation() }, el("summary", { text: "Conversation so far" }), this.said));
    this.tick();
    this.load();
  }

  tick() {
    if (!this.item.gone) this.note.textContent = until(this.item.until);
  }

  // load completes what the list does not have: the path from the root, the cost, and what the tool is.
  async load() {
    const a = this.item.approval;
    const [tree, tool] = await Promise.all([
      request("GET", `/v1/runs/${a.root_run_id}?tree=1&user=${this.item.space}`).catch(() => null),
      isBudget(a) ? null : request("GET", `/v1/tools/${encodeURIComponent(a.tool_name)}`).catch(() => null),
    ]);
    const byID = new Map((tree?.runs ?? []).map((r) => [r.run_id, r]));
    const path = [];
    for (let r = byID.get(a.run_id); r && path.length < 64; r = byID.get(r.parent_run_id)) path.unshift(r.agent_id);
    if (path.length) this.path.textContent = visible(path.join(" → "));
    this.root_run = byID.get(a.root_run_id);
    this.cost.textContent = spent([...byID.values()].map((r) => r.usage), await currency());
    if (a.kind === "budget") {
      const raise = [a.raise?.tokens && `${a.raise.tokens} tokens`, a.raise?.money && `${a.raise.money} of money`].filter(Boolean).join(" and ");
      this.effect.textContent = visible(`the budget of the run grows by ${raise || "what the request needs"}, and its request to the model ${a.tool_name} is sent.`);
      return;
    }
    const where = tool?.url ?? tool?.definition?.url;
    this.effect.textContent = visible(`${a.tool_name} is called once with exactly these arguments${where ? ` at ${where}` : ""}, and ${a.agent_id} goes on${tool?.description ? `. The tool: ${tool.description}` : ""}`);
  }

  async showConversation() {
    if (this.loaded) return;
    this.loaded = true;
    const a = this.item.approval;
    const agent = this.root_run?.root_agent_id ?? a.agent_id;
    try {
      const found = await request("GET", `/v1/sessions/${encodeURIComponent(a.session_id)}/messages?limit=${messagesShown}&agent=${agent}&user=${this.item.space}`);
      const all = [...found.messages, ...(found.open ?? [])];
      this.said.replaceChildren(...(all.length ? all.map((m) => el("p", { class: "said", "data-role": m.role }, el("span", { class: "muted small", text: `${m.role}: ` }), visible(typeof m.content === "string" ? m.content : json(m.content)))) : [el("p", { class: "muted", text: "No messages." })]));
    } catch (e) {
      this.loaded = false;
      this.said.replaceChildren(el("p", { class: "error-text", text: e.message }));
    }
  }

  async decide(decision, reason) {
    const raise = decision === "approve" ? this.raise?.value() : undefined;
    if (raise?.error) {
      this.error.textContent = raise.error;
      return;
    }
    const controls = this.form.querySelectorAll("button, input");
    for (const c of controls) c.disabled = true;
    this.error.textContent = "";
    try {
      const a = await request("POST", `/v1/approvals/${encodeURIComponent(this.item.id)}:decide?user=${this.item.space}`, { decision, reason: reason || undefined, raise });
      this.item.ok = a.status === "APPROVED";
      this.finish(outcome(a), this.item.ok);
    } catch (e) {
      for (const c of controls) c.disabled = false;
      this.error.textContent = refusal(e);
      if (e.code === "approval_decided") this.finish(e.message, false);
      else this.app.refused(e, true);
    }
  }
}

// QuestionCard shows a call of a client tool, which a device of the user answers. Nobody else can, so it has no buttons.
class QuestionCard extends Card {
  constructor(item, app) {
    const c = item.call;
    super(item, app, item.title);
    this.fact("Asked by", c.agent_id);
    this.fact("Asked of", c.principal ?? "");
    this.fact("Tool", c.tool_name);
    this.fact("Answer", "comes from a chat or an app of this user. You can only cancel the run.");
    this.fact("Run", el("a", { href: runLink(c.root_run_id, item.space), text: c.root_run_id }));
    this.root.append(el("pre", { class: "args", tabindex: "0", "aria-label": "Arguments", text: visible(json(c.args)) }));
    this.tick();
  }

  tick() {
    if (!this.item.gone) this.note.textContent = until(this.item.until);
  }
}

class ParkedCard extends Card {
  constructor(item, app) {
    const r = item.run;
    super(item, app, `Parked run of ${r.agent_id}`);
    this.fact("Asked for", r.principal ?? "");
    this.fact("Status", chip(statusOf(r)));
    this.fact("Spent so far", spent([r.tree_usage], ""));
    this.fact("Run", el("a", { href: runLink(r.run_id, item.space), text: r.run_id }));
    if (r.error) this.root.append(el("pre", { class: "args", tabindex: "0", text: visible(`${r.error.code}: ${r.error.detail ?? r.error.message ?? ""}`) }));
    this.form = el("div", { class: "form" }, el("div", { class: "row" }, ...["retry", "cancel"].map((verb) => el("button", { class: `button ${verb === "retry" ? "primary" : "danger"}`, type: "button", text: verb === "retry" ? "Retry" : "Cancel the run", onclick: () => this.act(verb) }))), this.error);
    this.root.append(this.form);
  }

  async act(verb) {
    try {
      const answer = await request("POST", `/v1/runs/${this.item.id}:${verb}?user=${this.item.space}`, verb === "cancel" ? {} : undefined);
      this.finish(verb === "retry" ? `Continued: ${answer.status}` : "Cancelled", verb === "retry");
    } catch (e) {
      this.error.textContent = refusal(e);
      this.app.refused(e, true);
    }
  }
}

// SignalCard shows a run that waits for a signal, which a person may send with a text.
class SignalCard extends Card {
  constructor(item, app) {
    const r = item.run, [{ name }] = r.waiting_for;
    super(item, app, `${r.agent_id} waits for ${name}`);
    this.name = name;
    this.fact("Asked for", r.principal ?? "");
    this.fact("Signal", name);
    this.fact("Spent so far", spent([r.tree_usage], ""));
    this.fact("Run", el("a", { href: runLink(r.run_id, item.space), text: r.run_id }));
    this.text = el("textarea", { class: "field", rows: "2", placeholder: "Text of the signal (optional)", "aria-label": "Text of the signal" });
    this.form = el("div", { class: "form" }, this.text, el("div", { class: "row" }, el("button", { class: "button primary", type: "button", text: "Send the signal", onclick: () => this.act("signal", { name, payload: this.text.value || undefined }) }),
      el("button", { class: "button danger", type: "button", text: "Cancel the run", onclick: () => this.act("cancel", {}) })), this.error);
    this.root.append(this.form);
    this.tick();
  }

  tick() {
    if (!this.item.gone) this.note.textContent = until(this.item.until);
  }

  async act(verb, body) {
    try {
      await request("POST", `/v1/runs/${this.item.run.run_id}:${verb}?user=${this.item.space}`, body);
      this.finish(verb === "signal" ? `Sent: ${this.name}` : "Cancelled", verb === "signal");
    } catch (e) {
      this.error.textContent = refusal(e);
      this.app.refused(e, true);
    }
  }
}
