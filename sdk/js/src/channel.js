// SPDX-License-Identifier: Apache-2.0
// A client of the channel protocol, docs/channel.md. It reconnects by itself, resumes each session behind the
// last cursor, and repeats requests that were not answered, with the same request_id.

import { TroupeError } from "./errors.js";
import { encode, newKey } from "./requests.js";

const randomName = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

const delayMin = 500;
const delayMax = 10000;
// The server answers a request within 30 s. A connection without an answer for longer is lost, though no end of it arrived.
const answerMax = 35000;
const followedMax = 60; // the server follows 64 on a connection
const requestsMax = 256; // that are not answered
const heldMax = 1000; // messages of a session since its last cursor
const toolCallsMax = 1000; // calls of client tools that are remembered
const open = 1; // readyState

// Detail is an event with a detail.
class Detail extends Event {
  constructor(type, detail) {
    super(type);
    this.detail = detail;
  }
}

// Channel emits the events "status" {state, wait, reason}, "message" (a message of the server),
// "answer" {request, message}, "requests" (those that are not answered changed), "ready" {user_id, device_id}, and
// "unfollowed" (a session that made room for another: following it again begins at its first message).
export class Channel extends EventTarget {
  constructor({ url, credentials, user, device, meta, tools = {}, parse = JSON.parse, patience = 60, WebSocket = globalThis.WebSocket }) {
    super();
    if (!WebSocket) throw new TroupeError("websocket_missing", "this version of Node has no WebSocket");
    this.WebSocket = WebSocket;
    this.url = `${url.replace(/^http/, "ws")}/v1/ws`;
    this.credentials = credentials;
    Object.assign(this, { user, device, meta, tools, parse, patience });
    this.cursors = new Map(); // sessions that are followed, the last used one last, with the cursor behind what was emitted
    this.unfinished = new Map(); // messages of a session since its last cursor
    this.requests = new Map(); // by request_id, not answered
    this.written = new Set(); // those that were written to a connection, so that the server may have them
    this.waiting = new Map(); // by request_id, {resolve, reject} of callers
    this.toolCalls = new Map(); // those that were given to a client tool, the oldest first, with an AbortController
    this.delay = delayMin;
    this.closed = false;
    this.state = "idle";
    this.listeners = [];
  }

  emit(type, detail) {
    this.dispatchEvent(new Detail(type, detail));
  }

  status(state, more = {}) {
    this.state = state;
    this.emit("status", { state, ...more });
  }

  // connect opens a connection in place of the present one. quiet marks a change that the person
  // did not ask for and need not see.
  connect(quiet = false) {
    clearTimeout(this.timer);
    this.closed = false;
    this.quiet = quiet;
    this.listen();
    this.detach();
    this.status("connecting", { quiet });
    const socket = new this.WebSocket(this.url, ["troupe.v1+json"]);
    this.socket = socket;
    this.unfinished.clear();
    socket.onopen = () => this.hello(socket);
    socket.onmessage = (e) => {
      let m;
      try {
        m = this.parse(e.data);
      } catch {
        return this.giveUp("a message is no JSON");
      }
      this.receive(m);
    };
    socket.onerror = () => {}; // its close follows
    socket.onclose = (e) => this.lost(e);
    const timer = setTimeout(() => socket === this.socket && this.state !== "ready" && this.giveUp("the server does not answer"), answerMax);
    timer.unref?.(); // it keeps no program of Node running
  }

  // hello names the client. A page does not see why a handshake was refused, and a URL is logged, so the bearer is in here.
  async hello(socket) {
    try {
      this.bearer = await this.credentials.bearer();
    } catch (e) {
      if (socket === this.socket) this.giveUp(e.message);
      return;
    }
    if (socket !== this.socket) return;
    const resume = [...this.cursors].map(([session_id, after]) => ({ session_id, after }));
    this.write({ type: "hello", ts: Date.now(), resume, ...(this.device && { device_id: this.device }), ...(this.meta && { client_meta: this.meta }), ...(this.user && { user_id: this.user }), ...(this.bearer && { api_key: this.bearer }) });
  }

  // listen reconnects early once the device is online, or the page is seen again: timers of a hidden one are slow.
  listen() {
    if (this.listeners.length) return;
    const on = (target, type, call) => {
      if (!target?.addEventListener) return;
      target.addEventListener(type, call);
      this.listeners.push(() => target.removeEventListener?.(type, call));
    };
    on(globalThis, "online", () => this.retryNow());
    on(globalThis, "offline", () => this.giveUp("this device is offline"));
    on(globalThis.document, "visibilitychange", () => document.visibilityState === "visible" && this.retryNow());
  }

  // detach forgets the present connection without an event.
  detach() {
    if (!this.socket) return;
    this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
    this.socket.close(1000);
    this.socket = null;
  }

  // close closes the channel. Requests that were not answered are those of the next connect.
  close() {
    this.closed = true;
    clearTimeout(this.timer);
    for (const off of this.listeners.splice(0)) off();
    for (const call of this.toolCalls.values()) call.abort();
    this.detach();
    this.status("closed");
    for (const id of [...this.waiting.keys()]) this.settle(id, new TroupeError("cancelled", "the channel was closed"));
  }

  retryNow() {
    if (this.state === "waiting" && !this.closed) this.connect();
  }

  lost(e) {
    this.socket = null;
    if (this.closed) return;
    if (e.code === 1008) return this.refuse(e.reason);
    const wait = this.delay * (0.75 + Math.random() / 2);
    this.delay = Math.min(this.delay * 2, delayMax);
    this.status("waiting", { wait, reason: e.reason });
    this.timer = setTimeout(() => this.connect(), wait);
  }

  // refuse ends the attempts: the same hello would be refused again. Another bearer, such as a token that was renewed, is
  // tried once.
  async refuse(reason) {
    const refused = this.bearer;
    if (refused && refused !== this.renewedFrom) {
      this.renewedFrom = refused;
      const next = await this.credentials.renewed(refused).catch(() => "");
      if (this.closed || this.socket) return;
      if (next) return this.connect(true);
    }
    this.status("refused", { reason });
    for (const id of [...this.waiting.keys()]) this.settle(id, new TroupeError("unauthorized", reason || "the server refused the connection", { status: 401 }));
  }

  // write writes a message. One for a session that is followed from its end waits until the server has named that place:
  // otherwise a connection that is lost now would begin behind the answer.
  write(message) {
    if (this.socket?.readyState !== open) return;
    if (message.type === "agent_invoke" && this.cursors.get(message.session_id) === "end") return;
    this.socket.send(encode(message));
    if (!this.requests.has(message.request_id)) return;
    this.written.add(message.request_id);
    this.awaitAnswer(this.socket, message.request_id);
  }

  // awaitAnswer gives a connection up that does not answer a request.
  awaitAnswer(socket, id) {
    const timer = setTimeout(() => {
      if (this.socket === socket && this.requests.has(id)) this.giveUp("the server does not answer");
    }, answerMax);
    timer.unref?.();
  }

  // giveUp replaces a connection whose end may never arrive.
  giveUp(reason) {
    if (!this.socket) return;
    this.detach();
    this.lost({ code: 1006, reason });
  }

  // away reports whether the server is not reached, other than for a moment that the person need not see.
  get away() {
    return this.state !== "ready" && !(this.state === "connecting" && this.quiet);
  }

  get full() {
    return this.cursors.size >= followedMax;
  }

  // follow begins to follow a session; with after "" from its first message. The messages of a
  // connection name the sessions in hello, so another connection is opened.
  follow(session, after = "") {
    const followed = this.cursors.get(session);
    if (followed !== undefined) { // only its place in the order of use changes
      this.cursors.delete(session);
      this.cursors.set(session, followed);
      return;
    }
    while (this.full) {
      const [oldest] = this.cursors.keys();
      this.cursors.delete(oldest);
      this.emit("unfollowed", oldest);
    }
    this.cursors.set(session, after);
    if (this.socket?.readyState === open) this.connect(true); // otherwise the next hello names it
  }

  // forget drops a session and the requests for it that were not answered.
  forget(session) {
    this.cursors.delete(session);
    this.unfinished.delete(session);
    this.drop((r) => r.session_id === session);
  }

  // drop drops the requests that a function selects.
  drop(selects) {
    for (const [id, r] of this.requests) {
      if (!selects(r)) continue;
      this.requests.delete(id);
      const written = this.written.delete(id);
      this.settle(id, new TroupeError(written ? "outcome_unknown" : "cancelled", written ? "the request was dropped; it may have been performed" : "the request was dropped before it was sent", { key: id }));
    }
    this.emit("requests");
  }

  // request sends a request, now or once the connection is open, until it is answered.
  request(type, fields, request_id = randomName()) {
    if (this.requests.has(request_id)) throw new TroupeError("invalid_request", "a request with this key is not answered yet", { field: "key", key: request_id });
    if (this.requests.size >= requestsMax) throw new TroupeError("agent_busy", `${requestsMax} requests of this channel are not answered`, { scope: "caller" });
    const request = { type, ts: Date.now(), request_id, ...fields };
    this.add(request);
    if (this.state === "ready") this.write(request);
    this.emit("requests");
    return request.request_id;
  }

  // restore adds a request of an earlier page of this tab, which may have been written.
  restore(request, written) {
    this.add(request);
    if (written) this.written.add(request.request_id);
  }

  add(request) {
    this.requests.set(request.request_id, request);
    if (request.type === "agent_invoke" && request.session_id) this.follow(request.session_id);
  }

  // perform sends a request and returns its answer. Without one in the time of patience it is dropped.
  perform(type, fields, { key, signal } = {}) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const id = this.request(type, fields, key);
      const dropped = () => this.drop((r) => r.request_id === id);
      const timer = setTimeout(() => {
        const written = this.written.has(id);
        this.settle(id, new TroupeError(written ? "outcome_unknown" : "server_unreachable", written ? `no answer for ${this.patience} s: it may have been performed` : `no connection to ${this.url} for ${this.patience} s`, { key: id }));
        dropped();
      }, Math.min(this.patience * 1000, 2 ** 31 - 1));
      const abort = () => {
        this.settle(id, signal.reason);
        dropped();
      };
      signal?.addEventListener("abort", abort, { once: true });
      const done = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
      };
      this.waiting.set(id, { resolve: (m) => (done(), resolve(m)), reject: (e) => (done(), reject(e)) });
    });
  }

  // settle gives the caller of a request its answer or an error.
  settle(id, answer) {
    const caller = this.waiting.get(id);
    this.waiting.delete(id);
    if (!caller) return;
    if (answer?.type === "error") {
      const retryAfter = answer.detail?.retry_after;
      caller.reject(new TroupeError(answer.code, answer.message, { retryAfter, key: id }));
    } else if (answer?.type) caller.resolve(answer);
    else caller.reject(answer);
  }

  // send sends a message to an agent and returns {run_id, session_id} once it is accepted. The answer follows as messages.
  // A session that is not followed yet is followed from its end; without one a new session begins.
  async send(agent, message, { session, runTimeout, ...options } = {}) {
    const session_id = session ?? newKey();
    if (session && !this.cursors.has(session)) this.follow(session, "end");
    const content = typeof message === "string" ? { role: "user", content: message } : message;
    const { run_id } = await this.perform("agent_invoke", { agent_id: agent, session_id, message: content, ...(runTimeout && { timeout_ms: Math.round(runTimeout * 1000) }) }, options);
    return { run_id, session_id };
  }

  // approve and reject decide about a tool call, or a budget: raise is what is added to it, {tokens, money}.
  async approve(approval, { reason, raise, ...options } = {}) {
    await this.perform("approval_decision", { approval_id: approval, decision: "approve", ...(reason && { reason }), ...(raise && { raise }) }, options);
  }

  async reject(approval, { reason, ...options } = {}) {
    await this.perform("approval_decision", { approval_id: approval, decision: "reject", ...(reason && { reason }) }, options);
  }

  async cancel(run, options) {
    await this.perform("cancel_run", { run_id: run }, options);
  }

  // useTool performs a client tool, once for each call: a connection brings those that are open again.
  async useTool({ tool_call_id, tool_name, args, deadline_ts, run_id, session_id }) {
    const tool = Object.hasOwn(this.tools, tool_name) && this.tools[tool_name];
    if (!tool || this.toolCalls.has(tool_call_id)) return;
    const call = new AbortController();
    this.toolCalls.set(tool_call_id, call);
    while (this.toolCalls.size > toolCallsMax) this.toolCalls.delete(this.toolCalls.keys().next().value);
    const late = setTimeout(() => call.abort(new TroupeError("timeout", "the time of the tool call has ended")), Math.max(0, Math.min(deadline_ts - Date.now(), 2 ** 31 - 1)));
    let fields;
    try {
      const result = await tool(args, { signal: call.signal, tool_call_id, run_id, session_id });
      fields = { ok: true, result: result ?? null };
    } catch (e) {
      fields = { ok: false, error: { ...(e?.code && typeof e.code === "string" && { code: e.code }), message: String(e?.message ?? e).slice(0, 1024) } };
    }
    clearTimeout(late);
    if (call.signal.aborted) return; // nobody waits for it
    await this.perform("tool_result", { tool_call_id, ...fields }).catch((e) => this.emit("toolfailed", { tool_call_id, error: e }));
  }

  receive(m) {
    if (m.type === "state" && m.state === "READY") {
      this.delay = delayMin;
      this.renewedFrom = undefined;
      this.status("ready");
      this.emit("ready", m.detail);
      for (const request of this.requests.values()) this.write(request);
      this.emit("requests");
      return;
    }
    if (m.request_id && ((m.type === "state" && m.state === "ACCEPTED") || m.type === "error")) {
      const request = this.requests.get(m.request_id);
      this.settle(m.request_id, m);
      this.drop((r) => r.request_id === m.request_id);
      if (request) this.emit("answer", { request, message: m });
      return;
    }
    if (m.type === "tool_request") this.useTool(m);
    // A request that is repeated lets the connection follow a session that has made room for another.
    const ofSession = m.session_id && m.type !== "tool_request" && !(m.type === "error" && !m.run_id);
    if (ofSession && !this.cursors.has(m.session_id)) return;
    if (!m.cursor && m.run_id && (m.type === "delta" || m.type === "state")) {
      // Another message of the same event follows: both count, or none.
      const held = this.unfinished.get(m.session_id) ?? [];
      held.push(m);
      this.unfinished.set(m.session_id, held);
      if (held.length > heldMax) this.giveUp(`${heldMax} messages without a cursor`);
      return;
    }
    const live = m.type === "state" && m.state === "LIVE";
    if (m.cursor || live) {
      const before = this.unfinished.get(m.session_id) ?? [];
      this.unfinished.delete(m.session_id);
      for (const held of before) this.emit("message", held);
      const place = this.cursors.get(m.session_id);
      if (place !== undefined) this.cursors.set(m.session_id, m.cursor ?? (place === "end" ? "" : place)); // a session without messages has no cursor
      if (place === "end") for (const r of this.requests.values()) if (r.type === "agent_invoke" && r.session_id === m.session_id) this.write(r);
    }
    this.emit("message", m);
  }
}
