// SPDX-License-Identifier: Apache-2.0
// Streams of events, which continue by themselves after a lost connection: no event is lost or repeated.

import { failureOf, refusalOf, TroupeError } from "./errors.js";
import { Link, now, readText, Retry, sleep } from "./requests.js";

// Characters of one frame. The text of run_done has at most 1 MiB.
const frameMax = 16 << 20;

// Seconds after which a connection that ends was none that failed: a proxy may limit its time.
const steadySeconds = 5;

// Seconds without a byte, after which a connection is lost: the server sends a comment every 15 s.
const silenceSeconds = 45;

// Parser splits the bytes of a stream into frames {event, data, id}, as the HTML standard defines. The id is the last one.
export class Parser {
  #decoder = new TextDecoder(); // it drops a byte order mark, and keeps the first bytes of a character that is cut
  #pieces = []; // of the last line, which is not complete
  #size = 0; // characters of the frame
  #cr = false; // the last line ended with CR, of which LF may be a part
  #event = "";
  #data = [];
  #id = "";

  // feed returns the frames that end in the next bytes.
  feed(bytes) {
    const frames = [];
    let text = this.#decoder.decode(bytes, { stream: true });
    if (this.#cr && text) {
      if (text[0] === "\n") text = text.slice(1);
      this.#cr = false;
    }
    let start = 0;
    for (const end of text.matchAll(/\r\n?|\n/g)) {
      this.#line(this.#pieces.join("") + text.slice(start, end.index), frames);
      this.#pieces = [];
      start = end.index + end[0].length;
      this.#cr = end[0] === "\r" && start === text.length;
    }
    if (start < text.length) {
      this.#pieces.push(text.slice(start));
      this.#grow(text.length - start);
    }
    return frames;
  }

  #grow(more) {
    this.#size += more;
    if (this.#size > frameMax) throw new TroupeError("not_an_answer", `an event has more than ${frameMax} characters`);
  }

  #line(line, frames) {
    if (!line) {
      if (this.#data.length) frames.push({ event: this.#event, data: this.#data.join("\n"), id: this.#id });
      this.#event = "";
      this.#data = [];
      this.#size = 0;
      return;
    }
    this.#grow(line.length);
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}

// AnswerText is the answer of a run as far as it was received.
class AnswerText {
  #pieces = [];
  #done;

  apply({ type, seq, payload: p = {} }) {
    if (type === "agent_invoke_started" || (type === "llm_call_started" && !p.request_id)) this.#pieces = [];
    else if (type === "agent_stream_delta") this.#pieces.push({ seq, step: p.step, index: p.index, text: p.text ?? "" });
    else if (type === "attempt" && p.discards_after) this.#pieces = this.#pieces.filter((d) => d.step !== p.step || d.index !== p.index || d.seq <= p.discards_after);
    else if (type === "run_done") this.#done = p.text ?? "";
  }

  get text() {
    return this.#done ?? this.#pieces.map((p) => p.text).join("");
  }
}

const ends = new Set(["run_done", "run_failed", "run_cancelled"]);

// EventStream is an asynchronous iterator of events. It is read once. The next connection continues behind the last event
// that it has given; what a slow reader does not take stays with the server.
export class EventStream {
  #requests;
  #first; // the message that begins the run: {path, body, key}; none for a run that exists
  #repeats = false; // whether the next connection sends the message again, because the client may not read events otherwise
  #path; // of the events; "" until the run is known
  #tree;
  #retry;
  #signal; // of the caller
  #link; // to it, once the stream is read
  #connection; // of the present request
  #onState;
  #text = new AnswerText();
  #iterator;
  #closed = false;
  #agent = "";

  constructor(requests, { first, path = "", runId = "", after = "", tree, signal, patience = requests.patience, onState }) {
    this.#requests = requests;
    this.#first = first;
    this.#path = path;
    this.#tree = tree;
    this.#retry = new Retry(patience, true, first?.key);
    this.#signal = signal;
    this.#onState = onState ?? (() => {});
    this.runId = runId; // "" before the first event of a message
    this.sessionId = first?.session ?? ""; // "" before the first events of a run
    this.cursor = after; // ID of the last event that was given, to continue in another process
    this.last = undefined; // the event that ended the run
    this.#iterator = this.#read();
  }

  // text is the answer as far as it was received. A repeated attempt may have replaced pieces of it.
  get text() {
    return this.#text.text;
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  next() {
    return this.#iterator.next();
  }

  // return ends the stream, as break in a loop does. The run continues.
  async return(value) {
    this.close();
    await this.#iterator.return();
    return { done: true, value };
  }

  // close ends the stream at once, also one that waits for an event.
  close() {
    this.#closed = true;
    this.#link?.controller.abort();
    this.#link?.close();
  }

  // answer reads to the end and returns the answer. It rejects with the failure of the run.
  async answer() {
    for (;;) if ((await this.next()).done) break;
    if (!this.last) throw new TroupeError("run_open", `the run ${this.runId} has not ended`, { runId: this.runId });
    const { type, run_id, payload: p = {} } = this.last;
    if (type !== "run_done") throw failureOf(p.error, run_id, type === "run_cancelled");
    return { run_id, agent_id: this.#agent, session_id: this.sessionId, status: p.status ?? "succeeded", content: p.text ?? "", ...(p.warnings && { warnings: p.warnings }), ...(p.usage && { usage: p.usage }) };
  }

  async *#read() {
    if (this.#closed) return;
    this.#link = new Link(this.#signal);
    try {
      while (!this.last) {
        let wait;
        try {
          this.#retry.began();
          const response = await this.#connect();
          if (response.status === 204) return;
          if (!response.ok) {
            const refusal = refusalOf(response.status, response.headers, await this.#textOf(response), this.#first?.key);
            // A customer may send a message with a stream, and again with its key, and read no events.
            if (refusal.code === "forbidden_scope" && this.#first && this.runId && !this.#repeats) {
              this.#repeats = true;
              continue;
            }
            wait = this.#retry.refused(refusal);
          } else if (!/^text\/event-stream\b/i.test(response.headers.get("content-type") ?? "")) {
            await response.body?.cancel();
            throw new TroupeError("not_an_answer", `the answer is ${response.headers.get("content-type") || "of no type"}, want text/event-stream`, { status: response.status, key: this.#first?.key ?? "" });
          } else {
            this.#opened(response.headers);
            yield* this.#events(response);
            if (this.last) return;
            wait = this.#retry.lost(new Error("the stream ended early"), this.#name());
          }
        } catch (e) {
          if (this.#closed) return;
          this.#link.signal.throwIfAborted();
          if (e instanceof TroupeError) throw e;
          wait = this.#retry.lost(e, this.#name());
        }
        this.#onState("away");
        await sleep(wait, this.#link.signal).catch((e) => {
          if (!this.#closed) throw e;
        });
        if (this.#closed) return;
      }
    } finally {
      this.#link.close();
    }
  }

  #name() {
    return this.runId ? `events of the run ${this.runId}` : this.#path ? `events of ${this.#path}` : "a message";
  }

  // #connect requests the events behind the cursor, or sends the message again: with its key it begins no second run.
  async #connect() {
    const link = new Link(this.#link.signal);
    const timer = this.#limit(link);
    const headers = { Accept: "text/event-stream" };
    try {
      let response;
      if (this.#first && (!this.runId || this.#repeats)) {
        headers["Idempotency-Key"] = this.#first.key;
        response = await this.#requests.open("POST", this.#first.path, { body: this.#first.body, headers, signal: link.signal });
      } else {
        if (this.cursor) headers["Last-Event-ID"] = this.cursor;
        response = await this.#requests.open("GET", this.#path || `/v1/runs/${this.runId}/events`, { query: { tree: this.#tree ? 1 : undefined }, headers, signal: link.signal });
      }
      this.#connection = link;
      return response;
    } catch (e) {
      link.close();
      throw e;
    } finally {
      clearTimeout(timer);
    }
  }

  #opened(headers) {
    if (!this.#path) this.runId ||= headers.get("x-run-id") ?? "";
    this.sessionId ||= headers.get("x-session-id") ?? "";
    this.#onState("ready");
  }

  async #textOf(response) {
    const timer = this.#limit(this.#connection);
    try {
      return await readText(response);
    } finally {
      clearTimeout(timer);
      this.#connection.close();
    }
  }

  // #limit aborts a request that is silent for too long, unless its timer is cleared.
  #limit(link) {
    return setTimeout(() => link.controller.abort(new Error(`no byte for ${silenceSeconds} s`)), silenceSeconds * 1000);
  }

  // #events gives the events of one connection until it ends. A connection that is silent for too long is aborted; the time
  // in which the reader does not ask for events is none of it.
  async *#events(response) {
    const parser = new Parser();
    const reader = response.body.getReader();
    const link = this.#connection;
    const since = now();
    try {
      for (;;) {
        const timer = this.#limit(link);
        let part;
        try {
          part = await reader.read();
        } finally {
          clearTimeout(timer);
        }
        if (part.done) return;
        for (const frame of parser.feed(part.value)) {
          if (frame.event === "stream_closed") {
            this.#closedBy(frame.data);
            return;
          }
          const e = this.#take(frame);
          if (!e) continue;
          yield e;
          if (this.last && !this.#tree) return; // runs below it may have later events
        }
      }
    } finally {
      if (now() - since >= steadySeconds) this.#retry.succeeded();
      link.controller.abort(); // it frees the connection, also one with unread bytes
      reader.cancel().catch(() => {}); // likewise, if fetch is a function that knows no signals
      link.close();
    }
  }

  // #closedBy throws if the server has ended the stream for good. Otherwise the next connection continues, or is refused.
  #closedBy(data) {
    let body;
    try {
      body = JSON.parse(data);
    } catch {
      body = {};
    }
    const reason = body?.reason ?? body?.code ?? data;
    if (reason === "session_deleted") throw new TroupeError("session_deleted", "the session was deleted", { status: 410 });
  }

  // #take returns the event of a frame, or undefined for one that was given before.
  #take(frame) {
    let e;
    try {
      e = this.#requests.parse(frame.data);
    } catch {
      // below
    }
    if (typeof e?.type !== "string") throw new TroupeError("not_an_answer", `an event is ${JSON.stringify(frame.data.slice(0, 80))}`, { runId: this.runId });
    // A message that is sent again has all events, and so has a stream behind a proxy that drops Last-Event-ID. The numbers of one run grow.
    const number = /^\d+$/;
    if (number.test(frame.id) && number.test(this.cursor) && Number(frame.id) <= Number(this.cursor)) return undefined;
    this.#retry.succeeded();
    this.cursor = frame.id;
    if (!this.#path) this.runId ||= e.run_id;
    if (e.run_id === this.runId) {
      this.#text.apply(e);
      const actor = e.payload?.actor ?? "";
      if (actor.includes("/") && (e.type === "user_input" || e.type === "run_started")) {
        const parts = actor.split("/");
        this.#agent = parts.at(-2);
        this.sessionId ||= parts.at(-1);
      }
      if (ends.has(e.type)) this.last = e;
    }
    return e;
  }
}
