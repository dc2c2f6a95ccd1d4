// SPDX-License-Identifier: Apache-2.0
// A client of a Troupe server for browsers and Node. Answers have the members of the HTTP API, docs/api.md; times are in
// seconds. A method needs no retry by its caller: a request without an answer is sent again with its idempotency key.

import { Channel } from "./channel.js";
import { failureOf, TroupeError } from "./errors.js";
import { EventStream } from "./events.js";
import { Credentials, encode, newKey, now, Requests, segment, sleep } from "./requests.js";

export { Channel, EventStream, TroupeError };

const patienceSeconds = 60;

// Milliseconds that one request waits for news of a run.
const pollMs = 20000;

const defined = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));

// Troupe is a client of the server at url, by default that of the page, in Node http://127.0.0.1:8283.
export class Troupe {
  constructor({ url = globalThis.location?.origin ?? "http://127.0.0.1:8283", key, token, user, patience = patienceSeconds, fetch, parse = JSON.parse, WebSocket } = {}) {
    let at = {};
    try {
      at = new URL(url);
    } catch {
      // below
    }
    if (!/^https?:$/.test(at.protocol) || at.username || at.password || at.search || at.hash)
      throw new TroupeError("invalid_request", "url is not that of a server: want http:// or https:// with a host, and no credentials, query or fragment", { field: "url" });
    this.url = at.href.replace(/\/+$/, "");
    this.requests = new Requests({ url: this.url, credentials: new Credentials(token ?? key), user, patience, fetch, parse });
    this.WebSocket = WebSocket;
    this.agents = new Agents(this);
    this.approvals = new Approvals(this);
    this.runs = new Runs(this);
    this.sessions = new Sessions(this);
  }

  // request sends any request of the HTTP API and returns the decoded answer.
  async request(method, path, options) {
    return (await this.requests.send(method, path, options)).body;
  }

  // send sends a message to an agent and returns its answer, also one for which a person must decide first. The message may
  // be a text or a list of text parts.
  async send(agent, message, { session, key = newKey(), signal, timeout, ...more } = {}) {
    const { path, body } = messageTo(agent, message, session, more);
    const until = deadline(timeout);
    if (timeout === undefined) {
      const answer = await this.requests.send("POST", path, { body, key, signal });
      return answer.status === 202 ? this.runs.wait(answer.body.run_id, { signal }) : answer.body;
    }
    let started;
    try {
      started = await this.request("POST", path, { body, key, signal, headers: { Prefer: "respond-async" } });
    } catch (e) {
      if (e.status !== 406) throw e;
      return this.request("POST", path, { body, key, signal, seconds: timeout, patience: 0 }); // an agent with durability none has no run to wait for
    }
    return this.runs.wait(started.run_id, { signal, timeout: Math.max(0, until - now()) });
  }

  // start sends a message and returns {run_id, session_id, …} as soon as it is on disk. The run continues.
  start(agent, message, { session, key = newKey(), signal, ...more } = {}) {
    const { path, body } = messageTo(agent, message, session, more);
    return this.request("POST", path, { body, key, signal, headers: { Prefer: "respond-async" } });
  }

  // stream returns the events of the answer as they happen. The message is sent when the first event is asked for.
  stream(agent, message, { session, key = newKey(), signal, patience, onState, ...more } = {}) {
    const { path, body } = messageTo(agent, message, session, more);
    return new EventStream(this.requests, { first: { path, body: encode(body), key, session }, signal, patience, onState });
  }

  // events returns the events of a path of the HTTP API.
  events(path, options) {
    return new EventStream(this.requests, { ...options, path });
  }

  // channel returns a channel, which connect opens.
  channel(options) {
    return new Channel({ url: this.url, credentials: this.requests.credentials, user: this.requests.user, parse: this.requests.parse, ...(this.WebSocket !== undefined && { WebSocket: this.WebSocket }), ...options });
  }

  // pages gives the items of all pages of a list.
  async *pages(path, name, query, signal) {
    for (let cursor; ; ) {
      const page = await this.request("GET", path, { query: { ...query, cursor }, signal });
      yield* page[name] ?? [];
      if (!page.next_cursor || page.next_cursor === cursor) return;
      cursor = page.next_cursor;
    }
  }
}

function messageTo(agent, content, session, { ifBusy, priority, runTimeout }) {
  return {
    path: `/v1/agents/${segment(agent, "agent")}/messages`,
    body: defined({ content, session_id: session, if_busy: ifBusy, priority, timeout_ms: runTimeout === undefined ? undefined : Math.max(1, Math.round(runTimeout * 1000)) }),
  };
}

// deadline returns the time at which a wait ends.
const deadline = (timeout) => (timeout === undefined ? Infinity : now() + timeout);

class Part {
  #troupe;

  constructor(troupe) {
    this.#troupe = troupe;
  }

  request(...of) {
    return this.#troupe.request(...of);
  }

  pages(...of) {
    return this.#troupe.pages(...of);
  }

  stream(options) {
    return new EventStream(this.#troupe.requests, options);
  }
}

// Agents of the deployment.
class Agents extends Part {
  list({ signal } = {}) {
    return this.pages("/v1/agents", "agents", {}, signal);
  }

  get(agent, options) {
    return this.request("GET", `/v1/agents/${segment(agent, "agent")}`, options);
  }
}

// Sessions of the user.
class Sessions extends Part {
  list({ signal } = {}) {
    return this.pages("/v1/sessions", "sessions", {}, signal);
  }

  get(session, options) {
    return this.request("GET", `/v1/sessions/${segment(session, "session")}`, options);
  }

  // create creates or describes a session. It is not needed before a message.
  create({ session, title, metadata, key = newKey(), signal } = {}) {
    return this.request("POST", "/v1/sessions", { body: defined({ session_id: session, title, metadata }), key, signal });
  }

  // delete deletes a session with all that belongs to it. cancel ends its open runs; otherwise they refuse it.
  async delete(session, { cancel, signal } = {}) {
    await this.request("DELETE", `/v1/sessions/${segment(session, "session")}`, { query: { cancel: cancel ? 1 : undefined }, key: newKey(), signal });
  }

  // messages returns a page of messages, oldest first: the latest ones, or those before a message_id.
  messages(session, { agent, limit, before, signal } = {}) {
    return this.request("GET", `/v1/sessions/${segment(session, "session")}/messages`, { query: { agent, limit, before }, signal });
  }

  // history gives all messages, the newest first.
  async *history(session, { agent, signal } = {}) {
    for (let before; ; ) {
      const page = await this.messages(session, { agent, limit: 200, before, signal });
      yield* page.messages.reverse();
      if (!page.next_before) return;
      before = page.next_before;
    }
  }

  // events returns the events of all runs of a session, until the reader leaves or the session is deleted.
  events(session, options) {
    return this.stream({ ...options, path: `/v1/sessions/${segment(session, "session")}/events` });
  }
}

// Approvals of tool calls and budgets that wait for a person.
class Approvals extends Part {
  list({ signal } = {}) {
    return this.pages("/v1/approvals", "approvals", {}, signal);
  }

  get(approval, options) {
    return this.request("GET", `/v1/approvals/${segment(approval, "approval")}`, options);
  }

  // approve lets the server perform the call. For a budget, raise is what is added to it, {tokens, money}; without it the
  // budget gets as much again.
  approve(approval, options) {
    return this.#decide(approval, "approve", options);
  }

  // reject lets the call fail with the code approval_rejected.
  reject(approval, options) {
    return this.#decide(approval, "reject", options);
  }

  #decide(approval, decision, { reason, raise, key = newKey(), signal } = {}) {
    return this.request("POST", `/v1/approvals/${segment(approval, "approval")}:decide`, { body: defined({ decision, reason, raise }), key, signal });
  }
}

// Runs of the user.
class Runs extends Part {
  // list gives runs, newest first. Filters are those of GET /v1/runs, such as status.
  list({ signal, ...filters } = {}) {
    return this.pages("/v1/runs", "runs", filters, signal);
  }

  get(run, options) {
    return this.request("GET", `/v1/runs/${segment(run, "run")}`, options);
  }

  // tree returns a run and the runs below it, in the order of the calls.
  async tree(run, { signal } = {}) {
    return (await this.request("GET", `/v1/runs/${segment(run, "run")}`, { query: { tree: 1 }, signal })).runs;
  }

  // cancel cancels a run and the calls it waits for. It may be repeated.
  cancel(run, { signal } = {}) {
    return this.request("POST", `/v1/runs/${segment(run, "run")}:cancel`, { safe: true, signal });
  }

  // retry replays a parked run again.
  retry(run, { signal } = {}) {
    return this.request("POST", `/v1/runs/${segment(run, "run")}:retry`, { safe: true, signal });
  }

  // signal answers a run that waits for a signal.
  signal(run, name, { payload, key = newKey(), signal } = {}) {
    return this.request("POST", `/v1/runs/${segment(run, "run")}:signal`, { body: defined({ name, payload }), key, signal });
  }

  // events returns the events of a run behind a cursor: those that exist, then those to come.
  events(run, options) {
    return this.stream({ ...options, runId: segment(run, "run") });
  }

  // wait returns the answer of a run. It rejects with its failure, or with run_open after the timeout; the run continues.
  async wait(run, { timeout, signal } = {}) {
    const until = deadline(timeout);
    for (;;) {
      const r = await this.get(run, { signal });
      if (["DONE", "FAILED", "CANCELLED"].includes(r.status)) return answerOf(r);
      if (now() >= until) throw new TroupeError("run_open", `the run ${run} is ${r.status}`, { runId: run });
      for (let after = r.last_seq ?? 0, ended = false; !ended && now() < until; ) {
        const wait = Math.max(1, Math.min(pollMs, Math.round((until - now()) * 1000)));
        const began = now();
        let page;
        try {
          page = await this.request("GET", `/v1/runs/${segment(run, "run")}/events`, { query: { after, wait_ms: wait, limit: 1000 }, seconds: wait / 1000 + 30, signal });
        } catch (e) {
          if (e.code !== "forbidden_scope") throw e;
          await sleep(Math.min(1, wait / 1000), signal); // a customer reads the run, and not its events
          break;
        }
        after = page.next_after ?? after;
        ended = page.ended || (page.events ?? []).some((e) => /^run_(done|failed|cancelled)$/.test(e.type));
        if (!ended && !page.events?.length && now() - began < wait / 2000) await sleep(0.5, signal); // a server that stops answers at once
      }
    }
  }
}

// answerOf returns the answer of a run that has ended.
function answerOf(r) {
  if (r.status !== "DONE" || r.error) throw failureOf(r.error, r.run_id, r.status === "CANCELLED");
  const { run_id, agent_id, session_id, warnings, usage, tree_usage } = r;
  return { run_id, agent_id, session_id, status: r.outcome ?? "succeeded", content: r.text ?? "", ...defined({ warnings, usage, tree_usage }) };
}
