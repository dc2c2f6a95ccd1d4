// SPDX-License-Identifier: Apache-2.0
// The chat page: agents, conversations, and the runs of one of them.

import { apiKey, isToken, request, setApiKey, troupe } from "./api.js";
import { ago, announce, byId, el } from "./dom.js";
import { belongsTo, draft, forgetAll, keepDraft, keepUnsent, takeUnsent } from "./outbox.js";
import { RunView } from "./run.js";
import { TaskCards } from "./tasks.js";
import { useTheme } from "./theme.js";

const runsShown = 200; // runs of a conversation that the page keeps
const agentsMax = 1000; // agents that the page reads
// newSession returns a name that begins with the time: lists are in the order of names.
const newSession = () => {
  const time = Date.now().toString(16).padStart(12, "0");
  return `${time.slice(0, 8)}-${time.slice(8)}-${randomName()}`;
};
const randomName = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");

function deviceName() {
  const name = sessionStorage.getItem("troupe.device") ?? `chat-${randomName()}`;
  sessionStorage.setItem("troupe.device", name);
  return name;
}

const channel = troupe.channel({ device: deviceName(), meta: { app: "troupe-chat" } });
const conversations = new Map(); // by session
let agents = [];
let settings = {}; // the table [chat] of the configuration
let current = null;

class Conversation {
  constructor(id) {
    this.id = id;
    this.title = "";
    this.updated = Date.now();
    this.agents = [];
    this.runs = new Map();
    this.pending = []; // messages that the server has not accepted, as views
    this.live = false;
    this.root = el("div", { class: "conversation" });
  }

  get openRuns() {
    return [...this.runs.values()].filter((r) => r.open);
  }

  get waits() {
    return [...this.runs.values()].some((r) => r.waits);
  }

  // showQueue marks the runs behind an open one of the same agent: an agent answers a conversation in order.
  showQueue() {
    const busy = new Set();
    const show = (view, unsent) => {
      view.setBehind(busy.has(view.agent), unsent);
      if (view.open) busy.add(view.agent);
    };
    for (const r of this.runs.values()) show(r);
    for (const p of this.pending) show(p.view, !channel.away ? "" : channel.written.has(p.request) ? "Not confirmed yet" : "Not sent yet");
  }

  // newView returns the view of a run, or with an empty ID of a message that the server has not accepted.
  newView(id) {
    return new RunView(id, this.id, { send: (type, fields) => channel.request(type, fields), change: () => changed(this), grown,
      again: (agent, text) => this.send(agent, text), edit: (text) => write([byId("composer").value, text].filter(Boolean).join("\n\n")) });
  }

  // send sends a message to an agent.
  send(agent, text) {
    this.updated = Date.now();
    this.addPending(channel.request("agent_invoke", { session_id: this.id, agent_id: agent, message: { role: "user", content: text } }), agent, text);
    toEnd();
    changed(this);
  }

  // addPending shows a message that the server has not accepted.
  addPending(request, agent, text) {
    const view = this.newView("");
    view.setAgent(agent);
    view.showMessage(text);
    this.root.append(view.root);
    this.pending.push({ view, text, request });
  }

  view(id) {
    let v = this.runs.get(id);
    if (!v) {
      v = this.newView(id);
      this.add(v, id);
    }
    return v;
  }

  add(v, id) {
    this.runs.set(id, v);
    this.root.insertBefore(v.root, this.pending[0]?.view.root ?? null);
    while (this.runs.size > runsShown) {
      const [oldest, view] = this.runs.entries().next().value;
      if (view.open) break;
      view.root.remove();
      this.runs.delete(oldest);
    }
  }

  // clear forgets the runs, which are read again when the conversation is opened.
  clear() {
    this.live = false;
    this.runs.clear();
    this.root.replaceChildren(...this.pending.map((p) => p.view.root));
  }

  // adopt gives the view of a message that was just sent to the run of that message.
  adopt(requestID, run) {
    const i = this.pending.findIndex((p) => p.request === requestID);
    if (i < 0) return;
    const [{ view }] = this.pending.splice(i, 1);
    const other = this.runs.get(run);
    if (other) {
      view.root.remove();
      return;
    }
    view.id = run;
    this.add(view, run);
  }

  handle(m) {
    if (m.type === "state" && m.state === "LIVE") {
      this.live = true;
      for (const r of this.runs.values()) r.showCards();
      const last = [...this.runs.values()].at(-1)?.agent;
      if (this === current && agents.some((a) => a.agent_id === last)) byId("agent").value = last;
      changed(this);
      return;
    }
    if (m.type === "error" && !m.run_id) {
      if (m.code === "events_dropped" && !m.cursor) this.clear(); // all messages follow again
      this.root.append(el("div", { class: "notice failed", text: m.message }));
      return;
    }
    if (!m.run_id) return;
    if (m.type === "run_started") {
      if (m.request_id) this.adopt(m.request_id, m.run_id);
      this.updated = Math.max(m.ts, this.live ? this.updated : 0);
      if (!this.title && m.message) this.title = titleOf(m.message.content);
      if (m.agent_id && !this.agents.includes(m.agent_id)) this.agents.push(m.agent_id);
    }
    this.view(m.run_id).handle(m, this.live);
  }
}

const titleOf = (text) => {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? line.slice(0, 59) + "…" : line;
};

function conversation(id) {
  let c = conversations.get(id);
  if (!c) conversations.set(id, (c = new Conversation(id)));
  return c;
}

// Work of other agents, which the page reads when a run begins or ends

const tasks = new TaskCards(byId("tasks"), (id) => request("POST", `/v1/runs/${encodeURIComponent(id)}:cancel`, {}).catch((e) => announce(e.message)).finally(showTasks));
let mayReadTasks = true; // a customer may not
let tasksOf = ""; // the runs for which they were read
async function showTasks() {
  const c = current;
  if (!c || !mayReadTasks || c.deleting || c.runs.size === 0) return tasks.show({}); // before the first run there is no session to ask
  try {
    const state = await request("GET", `/v1/sessions/${encodeURIComponent(c.id)}/state`);
    if (c === current) tasks.show(state.pendingRequests);
  } catch (e) {
    mayReadTasks = e.status !== 403;
    tasks.show({});
  }
  grown();
}
setInterval(() => tasks.tick(), 1000);
setInterval(() => tasks.count && showTasks(), 5000); // one may have ended without a run of this conversation

// Lists

let listing = 0;
function changed(c) {
  c.showQueue();
  const runs = `${c.id} ${c.runs.size} ${c.openRuns.length}`;
  if (c === current && runs !== tasksOf) {
    tasksOf = runs;
    showTasks();
  }
  listing ||= requestAnimationFrame(() => {
    listing = 0;
    showList();
    showControls();
  });
  if (c === current) grown();
}

function showList() {
  const all = [...conversations.values()].sort((a, b) => b.updated - a.updated);
  byId("no-sessions").hidden = all.length > 0;
  const focused = document.activeElement?.dataset?.session;
  byId("sessions").replaceChildren(...all.map((c) =>
    el("li", {}, el("button", { class: "session", type: "button", "data-session": c.id, "aria-current": c === current ? "true" : null, onclick: () => openConversation(c.id) },
      el("span", { class: "session-title", text: c.title || "Untitled conversation" }),
      el("span", { class: "session-meta small" }, el("span", { class: "muted", text: [c.agents.join(", "), ago(c.updated)].filter(Boolean).join(" · ") }),
        c.waits ? el("span", { class: "badge", text: "needs you" }) : c.openRuns.length ? el("span", { class: "badge busy", text: "working" }) : null)))));
  if (focused) byId("sessions").querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
}

function showControls() {
  const empty = !current || (current.runs.size === 0 && current.pending.length === 0);
  byId("welcome").hidden = !empty || (current && !current.live);
  byId("title").textContent = current?.title || "New conversation";
  document.title = `${current?.waits ? "● " : ""}${current?.title || "Chat"} · ${settings.title || "Troupe"}`;
  byId("rename").hidden = byId("delete").hidden = !current;
  byId("stop").hidden = !current?.openRuns.length;
  byId("send").disabled = !byId("composer").value.trim() || !agents.length;
}

// openConversation shows a conversation, or with null the place for a new one. It adds an entry to the history of
// the browser, or replaces the present one.
function openConversation(id, replace = false) {
  current = id ? conversation(id) : null;
  byId("composer").value = draft(id);
  fit();
  showNotice("");
  byId("messages").replaceChildren(...(current ? [current.root] : []));
  tasks.show({});
  if (current?.runs.size) showTasks();
  if (current) {
    channel.follow(current.id, "");
    if (current.agents.length && agents.some((a) => a.agent_id === current.agents.at(-1))) byId("agent").value = current.agents.at(-1);
  }
  const address = `${location.pathname}${id ? `#${encodeURIComponent(id)}` : ""}`;
  if (replace) history.replaceState(null, "", address);
  else if (linked() !== id) history.pushState(null, "", address);
  showSidebar(false);
  showList();
  showControls();
  toEnd();
}

// Conversations that were deleted, here or elsewhere

const goneText = "This conversation was deleted. Your next message begins a new one.";
const isGone = (code) => code === "session_deleted" || code === "session_not_found";

// drop forgets a conversation. If it is shown, the page offers a new one, with the messages that were not sent.
function drop(c, text) {
  const unsent = [draft(null), ...c.pending.map((p) => p.text), draft(c.id)].filter(Boolean);
  channel.forget(c.id);
  keepDraft(c.id, "");
  keepDraft(null, unsent.join("\n\n"));
  conversations.delete(c.id);
  if (c !== current) {
    if (!current) write(draft(null));
    changed(c);
    return;
  }
  openConversation(null, true);
  showNotice(text);
  announce(text);
  byId("composer").focus();
}

function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function closeDialogs() {
  for (const d of [byId("rename-dialog"), byId("delete-dialog")]) d.close();
}
for (const b of document.querySelectorAll("[data-close]")) b.addEventListener("click", closeDialogs);

// change performs a request of a dialog about the open conversation. A refusal is shown in the dialog.
async function change(form, perform) {
  const c = current;
  if (!c) return closeDialogs();
  const error = form.querySelector(".error-text");
  const submit = form.querySelector("[type=submit]");
  error.textContent = "";
  submit.disabled = true;
  try {
    await perform(c);
    closeDialogs();
  } catch (e) {
    if (isGone(e.code) || c.gone) {
      closeDialogs();
      drop(c, goneText);
    } else if (e.code === "session_busy" && form === byId("delete-form")) {
      askToDelete(true);
    } else {
      error.textContent = e.status ? e.message : "The server cannot be reached. Try again.";
    }
  } finally {
    submit.disabled = false;
  }
}

byId("rename").addEventListener("click", () => {
  byId("new-title").value = current.title;
  byId("rename-error").textContent = "";
  byId("rename-dialog").showModal();
  byId("new-title").select();
});
byId("rename-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const title = byId("new-title").value.trim();
  if (!title) return;
  change(e.target, async (c) => {
    await request("POST", "/v1/sessions", { session_id: c.id, title });
    c.title = title;
    changed(c);
  });
});

let cancels = false; // the person agreed that open runs are cancelled
function askToDelete(busy) {
  cancels = busy;
  byId("delete-text").textContent = busy ? "An answer is not finished, or waits for you. Stop it and delete the conversation?"
    : `“${current.title || "Untitled conversation"}” is deleted with all its messages. This cannot be undone.`;
  byId("delete-confirm").textContent = busy ? "Stop and delete" : "Delete";
  byId("delete-error").textContent = "";
}
byId("delete").addEventListener("click", () => {
  askToDelete(false);
  byId("delete-dialog").showModal();
});
byId("delete-form").addEventListener("submit", (e) => {
  e.preventDefault();
  change(e.target, async (c) => {
    c.deleting = true;
    try {
      await request("DELETE", `/v1/sessions/${encodeURIComponent(c.id)}${cancels ? "?cancel=1" : ""}`);
    } finally {
      c.deleting = false;
    }
    closeDialogs(); // before the focus moves
    drop(c, "The conversation was deleted.");
  });
});

// Scrolling: the end stays in view unless the reader has left it.

let following = true;
const timeline = byId("timeline");
function grown() {
  if (!current) timeline.scrollTop = 0;
  else if (following) timeline.scrollTop = timeline.scrollHeight;
}
function toEnd() {
  following = true;
  byId("to-end").hidden = true;
  grown();
}
timeline.addEventListener("scroll", () => {
  following = timeline.scrollHeight - timeline.scrollTop - timeline.clientHeight < 80;
  byId("to-end").hidden = following;
}, { passive: true });
byId("to-end").addEventListener("click", toEnd);
const resizes = new ResizeObserver(grown); // of the window too: the keyboard of a phone takes half of it
resizes.observe(byId("messages"));
resizes.observe(timeline);

// The connection

channel.addEventListener("status", ({ detail: s }) => {
  const texts = { connecting: "Connecting", ready: "Connected", waiting: "Reconnecting", refused: "Not connected", closed: "Not connected" };
  const status = byId("status");
  if (status.dataset.state === s.state || s.quiet) return;
  status.dataset.state = s.state;
  status.title = s.reason ?? "";
  byId("status-text").textContent = texts[s.state];
  if (s.state === "refused") askForKey(s.reason);
});

channel.addEventListener("requests", () => keepUnsent(channel));
channel.addEventListener("ready", ({ detail: { user_id: user } }) => {
  if (belongsTo(user)) return;
  channel.drop(() => true); // of another person
  location.reload();
});
for (const event of ["status", "requests"]) {
  channel.addEventListener(event, () => {
    for (const c of conversations.values()) if (c.pending.length) c.showQueue();
  });
}

channel.addEventListener("message", ({ detail: m }) => {
  if (!m.session_id) {
    if (m.type === "error") announce(m.message);
    return;
  }
  if (isGone(m.code) && !m.run_id) {
    const c = conversations.get(m.session_id);
    if (c?.deleting) {
      c.gone = true; // the answer to the request of this page follows
    } else if (c) {
      if (c === current) closeDialogs(); // they are about this conversation
      drop(c, goneText);
    }
    return;
  }
  const c = conversation(m.session_id);
  c.handle(m);
  // Each connection gets the open requests again, so one that is full shows them without the rest of their runs.
  if (m.type === "tool_request" && !channel.full) channel.follow(c.id, "");
  changed(c);
});

channel.addEventListener("unfollowed", ({ detail: id }) => {
  const c = conversations.get(id);
  if (!c) return;
  c.clear();
  changed(c);
});

channel.addEventListener("answer", ({ detail: { request: r, message: m } }) => {
  for (const c of conversations.values()) {
    const sent = c.pending.find((p) => p.request === r.request_id);
    if (sent && m.type === "error") {
      if (isGone(m.code)) return drop(c, goneText);
      c.pending = c.pending.filter((p) => p !== sent);
      sent.view.fail(m, true);
      changed(c);
    } else if (sent && m.run_id) {
      c.adopt(r.request_id, m.run_id);
    }
    for (const v of c.runs.values()) if (v.answered(r.request_id, m)) return;
  }
  if (m.type === "error") announce(m.message);
});

// Requests of the person

function sendMessage() {
  const box = byId("composer");
  const text = box.value.trim();
  const agent = byId("agent").value;
  if (!text) return;
  if (!agent) {
    byId("agent").focus();
    announce("Choose an agent");
    return;
  }
  localStorage.setItem("troupe.agent", agent);
  const fresh = !current;
  if (fresh) {
    keepDraft(null, "");
    current = conversation(newSession());
    current.live = true;
    current.title = titleOf(text);
    openConversation(current.id);
  }
  const c = current;
  write("");
  c.send(agent, text);
  if (fresh) request("POST", "/v1/sessions", { session_id: c.id, title: c.title }).catch(() => {}); // the title is a courtesy
}

// place is the session whose draft the composer shows; null for a new conversation.
const place = () => (started ? current?.id : linked());

// write replaces the draft of the open conversation.
function write(text) {
  const box = byId("composer");
  box.value = text;
  keepDraft(place(), text);
  fit();
  box.focus();
}

function fit() {
  const box = byId("composer");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, 240)}px`;
  showControls();
}

byId("composer").addEventListener("input", () => {
  keepDraft(place(), byId("composer").value);
  fit();
});
byId("composer").addEventListener("keydown", (e) => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  sendMessage();
});
byId("composer-form").addEventListener("submit", (e) => {
  e.preventDefault();
  sendMessage();
  byId("composer").focus();
});
byId("stop").addEventListener("click", () => {
  for (const r of current?.openRuns ?? []) channel.request("cancel_run", { run_id: r.id });
  byId("composer").focus();
});
byId("new-chat").addEventListener("click", () => {
  openConversation(null);
  byId("composer").focus();
});

// The list on narrow screens

function showSidebar(on) {
  const narrow = matchMedia("(max-width: 760px)").matches;
  document.body.classList.toggle("sidebar-open", on);
  byId("scrim").hidden = !on;
  byId("sidebar").inert = narrow && !on;
  byId("open-sidebar").setAttribute("aria-expanded", String(on));
  if (on) byId("close-sidebar").focus();
}
byId("open-sidebar").addEventListener("click", () => showSidebar(true));
for (const id of ["close-sidebar", "scrim"]) {
  byId(id).addEventListener("click", () => {
    showSidebar(false);
    byId("open-sidebar").focus();
  });
}
addEventListener("keydown", (e) => {
  if (e.key === "Escape" && document.body.classList.contains("sidebar-open")) showSidebar(false);
});
matchMedia("(max-width: 760px)").addEventListener("change", () => showSidebar(false));

// Keys

function askForKey(reason) {
  const token = isToken(apiKey());
  byId("key-title").textContent = token ? "Your access has ended" : "Access";
  byId("key-hint").textContent = token ? "Open this chat again from the page that you came from. Your conversations are kept."
    : "Open this chat from the page that offers it, or enter the key or the token that you were given. It is kept until this tab is closed.";
  for (const part of ["key-label", "key", "key-submit"]) byId(part).hidden = token;
  byId("key").required = !token;
  byId("key-error").textContent = apiKey() && !token ? reason : "";
  if (!token) setApiKey("");
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}
byId("key-dialog").addEventListener("cancel", (e) => e.preventDefault());
byId("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const key = byId("key").value.trim();
  if (!/^troupe_[\w.-]+$/.test(key)) {
    byId("key-error").textContent = "A key or a token begins with troupe_.";
    return;
  }
  setApiKey(key);
  byId("key").value = "";
  if (started) location.reload(); // it may be another person's
  else start();
});
byId("forget-key").addEventListener("click", () => {
  setApiKey("");
  forgetAll();
  location.reload();
});

// The start

// named returns the agent with an ID or, if there is none, with a name.
const named = (all, name) => all.find((a) => a.agent_id === name) ?? all.find((a) => a.name === name);

// preferred returns the agent of a new conversation: the one that the person chose last, that of the configuration, the
// only one, or that of the latest conversation. Without any, the person chooses.
function preferred() {
  const latest = [...conversations.values()].sort((a, b) => b.updated - a.updated).map((c) => c.agents.at(-1));
  const all = [localStorage.getItem("troupe.agent"), settings.default, agents.length === 1 ? agents[0].agent_id : null, ...latest];
  return all.map((name) => named(agents, name)?.agent_id).find(Boolean) ?? "";
}

function showAgents() {
  byId("brand").textContent = settings.title || "Troupe";
  document.body.classList.toggle("no-tokens", settings.tokens === false);
  const chosen = preferred();
  byId("agent").replaceChildren(...(chosen ? [] : [el("option", { value: "", text: "Choose an agent", selected: true, disabled: true, hidden: true })]),
    ...agents.map((a) => el("option", { value: a.agent_id, text: a.name || a.agent_id, selected: a.agent_id === chosen })));
  byId("cards").replaceChildren(...agents.slice(0, 6).map((a) =>
    el("button", { class: "agent-card", type: "button", onclick: () => {
      byId("agent").value = a.agent_id;
      byId("composer").focus();
      showControls();
    } }, el("strong", { text: a.name || a.agent_id }), el("span", { class: "muted small", text: a.doc || "" }))));
  if (!agents.length) byId("cards").replaceChildren(el("p", { class: "muted" }, "This server has no agents yet. ", el("code", { text: "troupe serve --agents DIR" }), " adds some."));
}

// The latest conversations are named by a message of theirs, until they are opened. The open one is read anyway.
async function nameConversations() {
  const untitled = [...conversations.values()].filter((c) => !c.title && c !== current).sort((a, b) => b.updated - a.updated);
  for (const c of untitled.slice(0, 30)) {
    try {
      const agent = c.agents.length > 1 ? `&agent=${encodeURIComponent(c.agents.at(-1))}` : "";
      const page = await request("GET", `/v1/sessions/${encodeURIComponent(c.id)}/messages?limit=20${agent}`);
      const first = [...(page.messages ?? []), ...(page.open ?? [])].find((m) => m.role === "user");
      if (!c.title && first) c.title = titleOf(first.content);
    } catch {
      continue; // deleted meanwhile, or too many requests: it keeps its place without a name
    }
    changed(c);
  }
}

let nextPage = ""; // cursor of the next page of conversations; empty at the end
async function listConversations(cursor) {
  const page = await request("GET", `/v1/sessions?limit=100${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
  for (const s of page.sessions ?? []) {
    const c = conversation(s.session_id);
    c.title = s.title || c.title;
    c.updated = Date.parse(s.updated_at) || c.updated;
    c.agents = (s.agents ?? []).map((a) => a.agent_id);
  }
  nextPage = page.next_cursor ?? "";
  byId("more").hidden = !nextPage;
}

byId("more").addEventListener("click", async () => {
  byId("more").disabled = true;
  try {
    await listConversations(nextPage);
    showList();
  } catch (e) {
    announce(e.message);
  } finally {
    byId("more").disabled = false;
  }
  nameConversations();
});

// Back, Forward and links within the page.
let started = false;
for (const event of ["popstate", "hashchange"]) {
  addEventListener(event, () => {
    if (!started || linked() === (current?.id ?? null)) return;
    closeDialogs();
    openConversation(linked(), true);
  });
}

// linked returns the session that the address names, or null.
function linked() {
  try {
    const name = decodeURIComponent(location.hash.slice(1));
    return /^[\w.-]{1,64}$/.test(name) ? name : null;
  } catch {
    return null; // a percent sign without two digits
  }
}

// listAgents reads the agents that the configuration names, in its order, or all of them.
async function listAgents() {
  const all = [];
  for (let cursor = "", page; all.length < agentsMax; cursor = page.next_cursor) {
    page = await request("GET", `/v1/agents?limit=200${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    all.push(...(page.agents ?? []));
    settings = page.chat ?? {};
    if (!page.next_cursor) break;
  }
  agents = settings.agents ? settings.agents.map((name) => named(all, name)).filter(Boolean) : all;
}

async function start() {
  try {
    await Promise.all([listAgents(), listConversations("")]);
  } catch (e) {
    if (e.status === 401 || e.status === 403) askForKey(e.message);
    else setTimeout(start, 2000);
    return;
  }
  if (byId("key-dialog").open) byId("key-dialog").close();
  byId("forget-key").hidden = !apiKey();
  showAgents();
  if (!started) {
    for (const { request: r, written } of takeUnsent()) {
      channel.restore(r, written);
      const c = conversation(r.session_id);
      c.title ||= titleOf(r.message.content);
      c.addPending(r.request_id, r.agent_id, r.message.content);
    }
    keepUnsent(channel);
  }
  openConversation(linked(), true);
  started = true;
  channel.connect();
  nameConversations();
  byId("composer").focus();
}

setInterval(() => {
  for (const r of current?.runs.values() ?? []) r.tick();
}, 5000);
useTheme(byId("theme"));
showSidebar(false);
byId("composer").value = draft(linked());
fit();
start();
