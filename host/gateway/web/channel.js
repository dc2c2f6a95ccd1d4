// SPDX-License-Identifier: Apache-2.0
// A client of the channel protocol, docs/channel.md. It reconnects by itself, resumes each session behind the
// last cursor, and repeats requests that were not answered, with the same request_id.

import { apiKey, parse } from "./api.js";

const randomName = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

const delayMin = 500;
const delayMax = 10000;
// The server answers a request within 30 s. A connection without an answer for longer is lost, though no end of it arrived.
const answerMax = 35000;
const followedMax = 60; // the server follows 64 on a connection

// Channel emits the events "status" {state, wait, reason}, "message" (a message of the server),
// "answer" {request, message}, "requests" (those that are not answered changed), "ready" {user_id, device_id}, and
// "unfollowed" (a session that made room for another: following it again begins at its first message).
export class Channel extends EventTarget {
  constructor(device) {
    super();
    this.device = device;
    this.cursors = new Map(); // sessions that are followed, the last used one last, with the cursor behind what was emitted
    this.unfinished = new Map(); // messages of a session since its last cursor
    this.requests = new Map(); // by request_id, not answered
    this.written = new Set(); // those that were written to a connection, so that the server may have them
    this.delay = delayMin;
    this.closed = false;
    this.state = "idle";
    addEventListener("online", () => this.retryNow());
    addEventListener("offline", () => this.giveUp("this device is offline"));
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.retryNow());
  }

  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
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
    this.detach();
    this.status("connecting", { quiet });
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/ws`, ["troupe.v1+json"]);
    this.socket = socket;
    this.unfinished.clear();
    socket.onopen = () => {
      const resume = [...this.cursors].map(([session_id, after]) => ({ session_id, after }));
      // A page does not see why a handshake was refused, so the key is in the hello.
      this.write({ type: "hello", ts: Date.now(), device_id: this.device, client_meta: { app: "troupe-chat" }, resume, ...(apiKey() && { api_key: apiKey() }) });
    };
    socket.onmessage = (e) => this.receive(parse(e.data));
    socket.onclose = (e) => this.lost(e);
  }

  // detach forgets the present connection without an event.
  detach() {
    if (!this.socket) return;
    this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
    this.socket.close(1000);
    this.socket = null;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.detach();
    this.status("closed");
  }

  retryNow() {
    if (this.state === "waiting" && !this.closed) this.connect();
  }

  lost(e) {
    this.socket = null;
    if (this.closed) return;
    if (e.code === 1008) {
      this.status("refused", { reason: e.reason });
      return;
    }
    const wait = this.delay * (0.75 + Math.random() / 2);
    this.delay = Math.min(this.delay * 2, delayMax);
    this.status("waiting", { wait, reason: e.reason });
    this.timer = setTimeout(() => this.connect(), wait);
  }

  write(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify(message));
    if (!this.requests.has(message.request_id)) return;
    this.written.add(message.request_id);
    this.awaitAnswer(this.socket, message.request_id);
  }

  // awaitAnswer gives a connection up that does not answer a request.
  awaitAnswer(socket, id) {
    setTimeout(() => {
      if (this.socket === socket && this.requests.has(id)) this.giveUp("the server does not answer");
    }, answerMax);
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
    if (this.socket?.readyState === WebSocket.OPEN) this.connect(true); // otherwise the next hello names it
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
      this.written.delete(id);
    }
    this.emit("requests");
  }

  // send sends a request, now or once the connection is open, until it is answered.
  send(type, fields) {
    const request = { type, ts: Date.now(), request_id: randomName(), ...fields };
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

  receive(m) {
    if (m.type === "state" && m.state === "READY") {
      this.delay = delayMin;
      this.status("ready");
      this.emit("ready", m.detail);
      for (const request of this.requests.values()) this.write(request);
      this.emit("requests");
      return;
    }
    if (m.request_id && ((m.type === "state" && m.state === "ACCEPTED") || m.type === "error")) {
      const request = this.requests.get(m.request_id);
      this.drop((r) => r.request_id === m.request_id);
      if (request) this.emit("answer", { request, message: m });
      return;
    }
    // A request that is repeated lets the connection follow a session that has made room for another.
    const ofSession = m.session_id && m.type !== "tool_request" && !(m.type === "error" && !m.run_id);
    if (ofSession && !this.cursors.has(m.session_id)) return;
    if (!m.cursor && m.run_id && (m.type === "delta" || m.type === "state")) {
      // Another message of the same event follows: both count, or none.
      const held = this.unfinished.get(m.session_id) ?? [];
      held.push(m);
      this.unfinished.set(m.session_id, held);
      return;
    }
    const before = this.unfinished.get(m.session_id) ?? [];
    if (m.cursor) {
      this.unfinished.delete(m.session_id);
      for (const held of before) this.emit("message", held);
      if (this.cursors.has(m.session_id)) this.cursors.set(m.session_id, m.cursor);
    }
    this.emit("message", m);
  }
}
