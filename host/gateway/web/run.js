// SPDX-License-Identifier: Apache-2.0
// Shows a run: the message of the user, its activity, approvals, calls of client tools, and the answer.

import { announce, copyButton, el, json, visible } from "./dom.js";
import { failure, limitEnds, limitReached } from "./failures.js";
import { Markdown } from "./markdown.js";
import { request } from "./api.js";
import { RaiseFields } from "./raise.js";

const stateTexts = {
  RUNNING: "Working",
  WAITING_APPROVAL: "Waiting for your approval",
  WAITING_SIGNAL: "Waiting for a signal",
  CALLING_AGENT: "Asking another agent",
  CALLING_TOOL: "Using a tool",
  RETRYING: "Trying again",
  PARKED: "Interrupted, until the operator continues it",
};

const argsShown = 2048; // characters of arguments that an approval shows at once

const notUndone = "Steps that it took before are not undone, and may be taken again.";

// readMessage returns the whole message of a run from the conversation, undefined if that has it no more.
async function readMessage(run) {
  for (let before = ""; ; ) {
    const page = await request("GET", `/v1/sessions/${encodeURIComponent(run.session)}/messages?agent=${encodeURIComponent(run.agent)}&limit=200${before && `&before=${before}`}`);
    const found = page.messages.find((m) => m.run_id === run.id && m.role === "user");
    if (found || !page.next_before) return found?.content;
    before = page.next_before;
  }
}

const budgetTitle = (m) => `Raise the budget for ${m.tool_name}?`;

// Decisions about approvals of called agents are read one after the other: a long conversation may have many.
let readings = Promise.resolve();

const readApproval = (m) => request("GET", `/v1/approvals/${encodeURIComponent(m.approval_id)}`);

// left returns the time until a deadline as text.
function left(until) {
  const seconds = Math.round((until - Date.now()) / 1000);
  if (seconds <= 0) return "expired";
  if (seconds < 90) return `expires in ${seconds} s`;
  if (seconds < 5400) return `expires in ${Math.round(seconds / 60)} min`;
  return `expires in ${Math.round(seconds / 3600)} h`;
}

// RunView shows a run. actions has send(type, fields) for requests, again(agent, text) and edit(text) for a message that
// failed, change(), called when what it waits for changes, and grown(), called when it needs more room.
export class RunView {
  constructor(id, session, actions) {
    Object.assign(this, { id, session, actions });
    this.agent = "";
    this.open = true;
    this.begun = false; // its turn has begun: until then it waits for earlier messages to the same agent
    this.segments = []; // {text, pieces, markdown}
    this.calls = new Map(); // activity by id
    this.cards = new Map(); // approvals and calls of client tools
    this.body = el("div", { class: "run-body" });
    this.name = el("span", { class: "run-agent" });
    this.phase = el("span", { class: "phase" }, el("span", { class: "spinner", "aria-hidden": "true" }), (this.phaseText = el("span", { text: "Working" })));
    this.foot = el("div", { class: "run-foot" }, this.phase);
    this.user = el("div", { class: "user-message", hidden: true });
    this.root = el("section", { class: "run", "aria-label": "Message and answer" }, this.user,
      el("div", { class: "run-head" }, el("span", { class: "avatar", "aria-hidden": "true" }), this.name), this.body, this.foot);
  }

  get waits() {
    return [...this.cards.values()].some((c) => c.open && !c.others && !c.settling);
  }

  setAgent(agent) {
    if (!agent || this.agent) return;
    this.agent = agent;
    this.name.textContent = agent;
    const hue = [...agent].reduce((h, c) => (h * 31 + c.codePointAt(0)) % 360, 7);
    const avatar = this.root.querySelector(".avatar");
    avatar.textContent = agent[0].toUpperCase();
    avatar.style.setProperty("--hue", hue);
  }

  // showMessage shows the message of the user, also before the server has accepted it.
  showMessage(text, truncated) {
    this.user.hidden = false;
    if (!truncated) this.message = text;
    const outcome = /^\{"kind":"skill_(?:response|timeout)".*?"status":"(completed|error|timeout)"/.exec(text)?.[1];
    if (outcome) {
      const texts = { completed: "Another agent has answered.", error: "Another agent could not answer.", timeout: "Another agent has not answered in time." };
      this.user.replaceChildren(el("div", { class: "muted small", text: texts[outcome] }));
      return;
    }
    this.user.replaceChildren(el("span", { class: "visually-hidden", text: "You: " }), el("div", { class: "bubble", text: truncated ? text + " …" : text }));
  }

  handle(m, live) {
    if (m.type === "state" || m.type === "delta") this.begun = true;
    switch (m.type) {
      case "run_started":
        this.setAgent(m.agent_id);
        this.principal = m.principal;
        this.sent = !m.origin; // by a person, so that it may be sent again
        if (m.message) this.showMessage(m.message.content, m.message.truncated);
        break;
      case "delta":
        this.append(m.text);
        break;
      case "state":
        this.state(m);
        break;
      case "approval_required":
        this.approval(m, live);
        break;
      case "tool_request":
        this.toolRequest(m, live);
        break;
      case "done":
        this.end();
        this.foot.append(el("span", { class: "tokens muted small", text: m.usage?.tokens ? `${m.usage.tokens.toLocaleString()} tokens` : "" }), copyButton(() => this.text, "Copy the answer"), this.regenerateButton() ?? "");
        if (live) announce(`${this.agent} answered: ${this.text.slice(0, 500)}`);
        break;
      case "error":
        this.fail(m, live);
        break;
    }
    this.actions.change();
  }

  // setBehind shows what a run waits for whose turn has not begun: the connection, by a text, or an earlier run of the
  // same conversation and agent.
  setBehind(behind, unsent = "") {
    this.root.dataset.unsent = unsent && "unsent";
    if (this.open && !this.begun) this.phaseText.textContent = unsent || (behind ? "Waiting for the answer above" : "Working");
  }

  get text() {
    return this.segments.map((s) => s.text).join("\n\n");
  }

  append(text) {
    let s = this.segments.at(-1);
    if (!s || s.closed) {
      const root = el("div", { class: "prose answer" });
      s = { text: "", pieces: [], root, markdown: new Markdown(root) };
      s.markdown.onrender = this.actions.grown;
      this.segments.push(s);
      this.body.append(root);
    }
    s.pieces.push(text);
    s.text += text;
    s.markdown.set(s.text);
    this.phaseText.textContent = "Answering";
    this.actions.grown();
  }

  // discard removes the last pieces of the answer, which is generated again.
  discard(count) {
    for (; count > 0 && this.segments.length; count--) {
      const s = this.segments.at(-1);
      s.pieces.pop();
      s.text = s.pieces.join("");
      s.markdown.set(s.text);
      if (!s.pieces.length) {
        s.root.remove();
        this.segments.pop();
      }
    }
  }

  closeSegment() {
    const s = this.segments.at(-1);
    if (s) s.closed = true;
  }

  state(m) {
    const d = m.detail ?? {};
    this.parked?.remove();
    this.phaseText.textContent = stateTexts[m.state] ?? (typeof d.text === "string" ? d.text : m.state);
    switch (m.state) {
      case "RETRYING":
        this.discard(d.void_deltas ?? 0);
        break;
      case "PARKED":
        this.showParked(d);
        break;
      case "CALLING_AGENT":
        this.activity(d.child_run_id, "agent", d.agent_id);
        break;
      case "CALLING_TOOL":
        this.activity(d.tool_call_id, "tool", d.tool_name);
        break;
    }
    if (d.decision) this.decided(d);
    else if (m.run_state && m.run_state !== "PAUSED_WAITING_APPROVAL") this.settleAll();
    else if (d.approval_id) this.settle(d.approval_id);
    // The request of a client tool is no message of the session, so a page that comes later sees its end only.
    if (d.tool_call_id && d.tool_name && d.status && !this.cards.has(d.tool_call_id)) this.activity(d.tool_call_id, "tool", d.tool_name);
    const call = this.calls.get(d.tool_call_id ?? d.child_run_id);
    if (call && d.status) {
      const ok = d.status === "SUCCEEDED" || d.status === "succeeded" || d.status === "DONE" || d.status === "partial";
      call.dataset.state = ok ? "ok" : "failed";
      call.querySelector(".activity-status").textContent = ok ? "done" : d.code || d.status.toLowerCase();
    }
    if (m.state === "WAITING_APPROVAL" && [...this.cards.values()].some((c) => c.open && c.others)) this.phaseText.textContent = "Waiting for a colleague";
    if (m.state === "RUNNING" && this.waits) this.phaseText.textContent = "Waiting for you";
    const card = this.cards.get(d.tool_call_id);
    if (card?.open && d.status) card.finish(d.code ? `Ended: ${d.code}` : (card.given ?? "Answered"), !d.code);
  }

  activity(id, kind, name) {
    this.closeSegment();
    if (!id || this.calls.has(id)) return;
    const row = el("div", { class: "activity", "data-state": "open" }, el("span", { class: "activity-icon", "aria-hidden": "true", text: kind === "agent" ? "↳" : "⚙" }),
      el("span", { class: "activity-name", text: name ?? "" }), el("span", { class: "activity-status", text: kind === "agent" ? "asked" : "running" }));
    this.calls.set(id, row);
    this.body.append(row);
  }

  // showParked shows why the run waits for its operator, until another state.
  showParked(d) {
    this.closeSegment();
    const notice = el("div", { class: "notice" }, el("p", { text: "This does not go on by itself yet. The operator continues it once its cause is mended; you can stop it." }),
      el("details", { class: "small" }, el("summary", { text: "Details" }), el("pre", { class: "args", tabindex: "0", text: visible(d.code ? `${d.code}: ${d.text}` : "The operator sees the reason.") }), el("p", { text: `Run ${this.id}` })));
    this.parked = notice;
    this.body.append(notice);
    announce("The run is interrupted, until its operator continues it");
  }

  // card adds a card that asks the person, who sees each character of what an agent has chosen.
  card(id, named, kind, ...content) {
    let title = visible(named);
    this.closeSegment();
    const head = el("div", { class: "card-head" }, el("strong", { text: title }), el("span", { class: "card-note muted small" }));
    const root = el("div", { class: `card ${kind}`, role: "group", "aria-label": title }, head, ...content);
    const card = { kind, root, open: true, note: head.querySelector(".card-note") };
    card.rename = (text) => {
      title = visible(text);
      head.querySelector("strong").textContent = title;
      root.setAttribute("aria-label", title);
    };
    card.finish = (text, ok) => {
      card.open = false;
      for (const part of root.querySelectorAll(".card-form, .card-hint")) part.remove();
      for (const part of root.querySelectorAll("details")) {
        part.open = false;
        part.firstChild.textContent = "Arguments";
      }
      if (kind === "approval") head.querySelector("strong").textContent = title.replace(/^(?:Approve|Raise the) (.*)\?$/, "$1");
      root.dataset.state = ok ? "ok" : "failed";
      card.note.textContent = "";
      root.append(el("p", { class: "card-result", text: visible(text) }));
      this.actions.change();
    };
    this.cards.set(id, card);
    this.body.append(root);
    this.actions.grown();
    return card;
  }

  approval(m, live) {
    if (this.cards.has(m.approval_id)) return;
    if (!m.tool_name) return this.approvalOfOthers(m, live, true);
    const reason = el("input", { type: "text", class: "input", maxlength: "1000", placeholder: "Reason (optional)", "aria-label": "Reason" });
    const error = el("p", { class: "error-text", role: "alert" });
    const args = el("pre", { class: "args", tabindex: "0", "aria-label": "Arguments" });
    const summary = el("summary", { text: "Arguments" });
    const details = el("details", { class: "card-details", ontoggle: () => details.open && load() }, summary, args);
    const approve = el("button", { class: "button primary", type: "button", text: "Approve", onclick: () => decide("approve") });
    const reject = el("button", { class: "button danger", type: "button", text: "Reject", onclick: () => decide("reject") });
    const form = el("div", { class: "card-form" }, reason, el("div", { class: "row" }, approve, reject), error);
    const text = el("p", { class: "card-text", text: visible(m.args_summary || m.tool_name) });
    const asksForBudget = m.kind === "budget";
    const card = this.card(m.approval_id, asksForBudget ? budgetTitle(m) : `Approve ${m.tool_name}?`, "approval", text,
      m.child_run_id ? el("p", { class: "muted small", text: "Needed by an agent that was asked for help." }) : null, details, form);
    card.until = m.expires_ts;
    card.tick = () => card.open && (card.note.textContent = left(card.until));
    card.tick();
    const askForBudget = () => {
      card.rename(budgetTitle(m));
      text.textContent = visible(`${this.agent || "The agent"} asks for a larger budget: ${m.args_summary || m.tool_name}`);
      approve.textContent = "Raise the budget";
      summary.textContent = "Request";
    };
    if (asksForBudget) askForBudget();
    const enable = (on) => [reason, approve, reject, ...(budget?.fields ?? [])].forEach((e) => (e.disabled = !on));
    const decide = (decision) => {
      const raise = decision === "approve" ? budget?.value() : undefined;
      error.textContent = raise?.error ?? "";
      if (raise?.error) return;
      enable(false);
      card.request = this.actions.send("approval_decision", { run_id: this.id, approval_id: m.approval_id, decision, reason: reason.value.trim() || undefined, raise });
    };
    card.refused = (answer) => {
      enable(true);
      error.textContent = answer.message;
      if (answer.code === "approval_decided") card.finish(answer.message, false);
    };
    let loaded = false;
    let budget = null;
    const load = async () => {
      if (loaded) return;
      try {
        const found = await readApproval(m);
        if (found.may_decide === false && found.status === "PENDING" && card.open) return this.leaveToOthers(m, live);
        if (found.kind === "budget" && card.open) {
          askForBudget();
          budget = new RaiseFields(found);
          form.prepend(budget.root);
        }
        args.textContent = visible(json(found.args));
        loaded = true;
      } catch (e) {
        args.textContent = e.message;
      }
    };
    // A person sees what is to be done before approving it. Long arguments show their length.
    card.show = async () => {
      if (!card.open || loaded) return;
      await load();
      if (args.textContent.length > argsShown) summary.textContent = `Arguments (${args.textContent.length.toLocaleString()} characters)`;
      else if (card.open) details.open = true;
    };
    if (live) card.show(); // one of the past is shown if it still waits at the end of the messages
    if (live) announce(visible(`${asksForBudget ? `A larger budget for ${m.tool_name}` : m.tool_name} needs your approval: ${m.args_summary ?? ""}`));
  }

  // leaveToOthers replaces the card of an approval about which somebody else decides.
  leaveToOthers(m, live) {
    this.cards.get(m.approval_id).root.remove();
    this.cards.delete(m.approval_id);
    this.approvalOfOthers(m, live, false);
    this.actions.change();
  }

  // approvalOfOthers shows that somebody else decides. A customer is told about what only if it decides itself,
  // which the server says on request.
  approvalOfOthers(m, live, ask) {
    const card = this.card(m.approval_id, "A colleague has been asked", "approval", el("p", { class: "card-text card-hint", text: "The answer goes on once they have decided. You can write meanwhile." }));
    Object.assign(card, { others: true, nameless: ask, until: m.expires_ts, tick: () => {}, refused: () => {}, show: () => {} });
    card.show = async () => {
      if (!ask || !card.open) return;
      ask = false;
      const found = await readApproval(m).catch(() => ({}));
      if (!found.may_decide || !card.open) return;
      card.root.remove();
      this.cards.delete(m.approval_id);
      this.approval({ ...m, kind: found.kind, tool_name: found.tool_name, args_summary: found.args_summary }, true);
      this.actions.change();
    };
    if (live) card.show();
    this.phaseText.textContent = "Waiting for a colleague";
    if (live) announce("A colleague has been asked");
  }

  // settleAll settles the approvals of a run that waits for none.
  settleAll() {
    for (const [id, card] of this.cards) if (card.kind === "approval") this.settle(id);
  }

  // settle reads how the approval of an open card ended: no message has the decision about one of a called agent.
  settle(id) {
    const card = this.cards.get(id);
    if (!card?.open || card.settling) return;
    card.settling = true;
    readings = readings.then(async () => {
      const found = await readApproval({ approval_id: id }).catch(() => null);
      card.settling = false;
      if (found?.status && found.status !== "PENDING") this.decided({ approval_id: id, decision: found.status, ...(card.nameless ? {} : { by: found.decided_by, reason: found.reason }) });
      else if (this.open) this.actions.change();
      else for (const c of this.cards.values()) if (c.open && !c.settling) c.finish("Ended with the run", false);
    });
  }

  decided(d) {
    const card = this.cards.get(d.approval_id);
    if (!card?.open) return;
    const word = { APPROVED: "Approved", REJECTED: "Rejected", EXPIRED: "Expired" }[d.decision] ?? d.decision;
    card.finish([word, d.by ? ` by ${d.by === this.principal ? "you" : d.by}` : "", d.reason ? `: ${d.reason}` : ""].join(""), d.decision === "APPROVED");
  }

  // toolRequest asks the person for the result of a client tool. A tool with the argument
  // "question" is a question; with "choices" too, a choice.
  toolRequest(m, live) {
    if (this.cards.has(m.tool_call_id)) return;
    this.phaseText.textContent = "Waiting for your answer";
    const args = m.args && typeof m.args === "object" ? m.args : {};
    const question = typeof args.question === "string" ? args.question : "";
    const choices = Array.isArray(args.choices) ? args.choices.filter((c) => typeof c === "string").slice(0, 20) : [];
    const error = el("p", { class: "error-text", role: "alert" });
    const field = el("textarea", { class: "field", rows: question ? "2" : "3", "aria-label": visible(question || `Result of ${m.tool_name}`), placeholder: question ? "Your answer" : "Result: text or JSON" });
    const answer = (fields) => {
      enable(false);
      error.textContent = "";
      card.request = this.actions.send("tool_result", { run_id: this.id, tool_call_id: m.tool_call_id, ...fields });
      card.given = fields.ok ? `You answered: ${json(fields.result)}` : "You declined";
    };
    const value = () => {
      const text = field.value.trim();
      if (question) return text;
      try {
        return JSON.parse(text);
      } catch {
        return text;
      }
    };
    const give = () => (field.value.trim() ? answer({ ok: true, result: value() }) : field.focus());
    field.addEventListener("keydown", (e) => {
      if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
      e.preventDefault();
      give();
    });
    const buttons = choices.map((c) => el("button", { class: "button choice", type: "button", text: visible(c), onclick: () => answer({ ok: true, result: c }) }));
    const send = el("button", { class: "button primary", type: "button", text: "Answer", onclick: give });
    const decline = el("button", { class: "button quiet", type: "button", text: "Decline", onclick: () => answer({ ok: false, error: { code: "declined", message: "the person declined" } }) });
    const form = el("div", { class: "card-form" }, buttons.length ? el("div", { class: "row" }, ...buttons) : null, field, el("div", { class: "row" }, send, decline), error);
    const card = this.card(m.tool_call_id, question ? `${this.agent || "The agent"} asks` : m.tool_name, "question", el("p", { class: "card-text", text: visible(question) || "This tool runs on your device. Give its result." }),
      question ? null : el("pre", { class: "args", tabindex: "0", "aria-label": "Arguments", text: visible(json(m.args)) }), form);
    card.until = m.deadline_ts;
    card.tick = () => card.open && (card.note.textContent = left(card.until));
    card.tick();
    const enable = (on) => [field, send, decline, ...buttons].forEach((e) => (e.disabled = !on));
    card.accepted = () => card.open && card.finish(card.given, true);
    card.refused = (a) => {
      enable(true);
      error.textContent = a.message;
      if (a.code === "tool_call_ended") card.finish(a.message, false);
    };
    if (live) announce(visible(question || `${m.tool_name} needs a result`));
  }

  // answered passes the answer to a request that a card has sent.
  answered(requestID, m) {
    for (const card of this.cards.values()) {
      if (card.request !== requestID) continue;
      if (m.type === "error") card.refused(m);
      else card.accepted?.();
      return true;
    }
    return false;
  }

  // fail shows why the run has no answer. What the server says about it is for who can mend it.
  fail(m, live) {
    const took = this.calls.size + this.cards.size > 0;
    this.end();
    if (m.code === "cancelled") {
      this.body.append(el("div", { class: "notice" }, el("strong", { text: "Stopped." }), el("span", { text: ` ${visible(this.own(m.message))}${took ? `. ${notUndone}` : ""}` }),
        this.sent ? el("div", {}, this.againButton("Send again")) : null));
      if (live) announce(`Stopped: ${m.message}`);
      return;
    }
    const until = limitEnds(m);
    const { text, again, edit } = until === undefined ? failure(m.code) : limitReached(until);
    const sentences = [text];
    if (m.detail?.retry_after && until === undefined) sentences.push(`Try again in ${m.detail.retry_after} s.`);
    if (took && m.code !== "outcome_unknown") sentences.push(notUndone);
    this.body.append(el("div", { class: "notice failed", role: "group", "aria-label": "Failure" }, el("p", { text: sentences.join(" ") }),
      this.sent === false ? null : again ? this.againButton(took ? "Send again" : "Retry") : edit ? this.messageButton("Edit the message", this.actions.edit) : null,
      el("details", { class: "small" }, el("summary", { text: "Details" }), el("p", { text: visible(`${m.code}: ${m.message}`) }), this.id ? el("p", { text: `Run ${this.id}` }) : null)));
    if (live) announce(sentences.join(" "));
  }

  againButton(label) {
    return this.messageButton(label, (text) => this.actions.again(this.agent, text));
  }

  // messageButton returns a button that passes the whole message of the run on, once.
  messageButton(label, act) {
    const button = el("button", { class: "button small", type: "button", text: label, onclick: async () => {
      button.disabled = true;
      const text = this.message ?? (await readMessage(this).catch(() => undefined));
      if (text === undefined) button.replaceWith(el("span", { class: "small", text: "The whole message is not kept. Please write it again." }));
      else {
        button.remove();
        act(text);
      }
    } });
    return button;
  }

  // regenerateButton returns a button that sends the message of a run with an answer again, after a second press if the
  // run has taken steps. The page shows it at the last run only.
  regenerateButton() {
    if (!this.sent) return null;
    const send = this.againButton("Regenerate");
    send.classList.add("quiet");
    const part = el("span", { class: "regenerate" }, this.calls.size + this.cards.size === 0 ? send : el("button", { class: "button quiet small", type: "button", text: "Regenerate", onclick: () => {
      send.textContent = "Send again";
      part.replaceChildren(el("span", { class: "small", text: notUndone }), send);
      send.focus();
      announce(notUndone);
    } }));
    return part;
  }

  // own returns a text with the name of the person at its beginning replaced.
  own(text) {
    return this.principal && text.startsWith(`${this.principal} `) ? `You ${text.slice(this.principal.length + 1)}` : text;
  }

  end() {
    this.open = false;
    this.parked?.remove();
    this.phase.remove();
    this.settleAll();
    for (const card of this.cards.values()) if (card.open && card.kind !== "approval") card.finish("Ended with the run", false);
    for (const row of this.calls.values()) if (row.dataset.state === "open") row.dataset.state = "ok";
    this.actions.grown();
  }

  // showCards completes the cards that wait, once all earlier messages of the session were read.
  showCards() {
    for (const card of this.cards.values()) card.show?.();
  }

  tick() {
    for (const card of this.cards.values()) card.tick?.();
  }
}
