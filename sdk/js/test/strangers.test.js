// SPDX-License-Identifier: Apache-2.0
// Faults that were reported of other clients of streams, tried on this one. Each test names the report. The servers send the
// bytes of those reports over real connections.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";

import { retryAfterOf } from "../src/errors.js";
import { Parser } from "../src/events.js";
import { Troupe, TroupeError } from "../src/troupe.js";
import { listen } from "./server.js";

const bytes = (text) => new TextEncoder().encode(text);

// parsed returns the frames of chunks, as [event, data, id].
function parsed(...chunks) {
  const parser = new Parser();
  return chunks.flatMap((chunk) => parser.feed(typeof chunk === "string" ? bytes(chunk) : chunk)).map((f) => [f.event, f.data, f.id]);
}

const event = (seq, type, payload = {}) => ({ run_id: "r1", seq, type, payload });
const frame = (e) => `id: ${e.seq}\nevent: ${e.type}\ndata: ${JSON.stringify(e)}\n\n`;
const answer = [event(1, "user_input", { actor: "helper/s1" }), event(2, "agent_stream_delta", { text: "一 " }), event(3, "agent_stream_delta", { text: "two" }), event(4, "run_done", { text: "一 two" })];

const stream = (w, headers = {}) => w.writeHead(200, { "Content-Type": "text/event-stream", "X-Run-Id": "r1", ...headers });
const after = (q) => Number(q.headers["last-event-id"] ?? 0);
const seqs = async (items) => {
  const got = [];
  for await (const e of items) got.push(e.seq);
  return got;
};

test("a character that is cut between chunks (braintrust-sdk-javascript 2091, mastra 20224)", () => {
  const text = bytes("data: 北‹🌍›\n\n");
  for (let cut = 0; cut <= text.length; cut++) assert.deepEqual(parsed(text.slice(0, cut), text.slice(cut)), [["", "北‹🌍›", ""]], `cut at ${cut}`);
  assert.deepEqual(parsed(...Array.from(text, (b) => Uint8Array.of(b))), [["", "北‹🌍›", ""]]);
});

test("CR LF, alone, mixed and cut between chunks (eventsource-parser 17, eventsource 326)", () => {
  assert.deepEqual(parsed("data: A\r\n", "data: B\r", "\ndata: C\r\n", "\n"), [["", "A\nB\nC", ""]]);
  assert.deepEqual(parsed("data: A\r\n", "data: B\r", "data: C\r\n", "\n"), [["", "A\nB\nC", ""]]);
  assert.deepEqual(parsed("event: x\r\ndata: 1\n\nid: 7\rdata: 2\r\rdata: 3\r\n\r\n"), [["x", "1", ""], ["", "2", "7"], ["", "3", "7"]]);
});

test("a byte order mark, also cut (eventsource-parser 41, whatwg/html 7791)", () => {
  const text = bytes("\ufeffdata: first\n\ndata: \ufeffsecond\n\n");
  for (const cut of [0, 1, 2, 3]) assert.deepEqual(parsed(text.slice(0, cut), text.slice(cut)), [["", "first", ""], ["", "\ufeffsecond", ""]]);
});

test("comments, empty lines of data, unknown fields and an end without an empty line (eventsource 35)", () => {
  assert.deepEqual(parsed(": ping\n\n:\n\ndata: a\ndata\ndata:\ndata:  b\nfoo: x\n\nevent: none\n\ndata: cut"), [["", "a\n\n\n b", ""]]);
  assert.deepEqual(parsed("id: 1\ndata: a\n\nid: 2\0\ndata: b\n\nid\ndata: c\n\n"), [["", "a", "1"], ["", "b", "1"], ["", "c", ""]]);
});

test("an event without an end is bounded, and one of many chunks takes time in proportion", () => {
  const parser = new Parser();
  const chunk = bytes("x".repeat(1 << 16));
  parser.feed(bytes("data: "));
  assert.throws(() => {
    for (let i = 0; i < 300; i++) parser.feed(chunk);
  }, (e) => e instanceof TroupeError && e.code === "not_an_answer");
});

test("Retry-After as a date, by the clock of the server (openai-node 1108)", () => {
  const of = (fields, now) => retryAfterOf(new Headers(fields), now);
  assert.equal(of({ "Retry-After": "2" }), 2);
  assert.equal(of({ "Retry-After": "Mon, 30 Nov 2026 12:00:07 GMT", Date: "Mon, 30 Nov 2026 12:00:00 GMT" }, 0), 7);
  assert.equal(of({ "Retry-After": "Mon, 30 Nov 2026 12:00:07 GMT" }, Date.parse("Mon, 30 Nov 2026 12:00:00 GMT")), 7);
  assert.equal(of({ "Retry-After": "Mon, 30 Nov 2020 12:00:00 GMT" }), 0);
  assert.equal(of({ "Retry-After": "soon" }), 0);
  assert.equal(of({}), 0);
});

test("a Retry-After is waited for, and one beyond the patience is an error at once (openai-node 1840)", async (t) => {
  let wait = "1";
  const times = [];
  const url = await listen(t, (q, w) => {
    times.push(performance.now());
    if (times.length === 2) return w.end('{"session_id": "s"}');
    w.writeHead(429, { "Retry-After": wait, "Content-Type": "application/problem+json" });
    w.end('{"code": "agent_busy", "detail": "busy", "scope": "callee"}');
  });
  const troupe = new Troupe({ url, patience: 10 });
  await troupe.sessions.get("s");
  assert.ok(times[1] - times[0] >= 1000, `waited ${times[1] - times[0]} ms`);
  wait = "3600";
  const began = performance.now();
  await assert.rejects(troupe.sessions.get("s"), { code: "agent_busy", retryAfter: 3600, scope: "callee", status: 429 });
  assert.ok(performance.now() - began < 1000);
});

test("a signal that lives long keeps no listener (node 52635, undici 5285)", async (t) => {
  let asked = 0;
  const url = await listen(t, (q, w) => {
    if (++asked === 1) return w.writeHead(429, { "Content-Type": "application/problem+json" }).end('{"code": "agent_busy"}');
    if (!q.url.includes("events")) return w.end("{}");
    stream(w);
    w.end(answer.map(frame).join(""));
  });
  const { signal } = new AbortController();
  const troupe = new Troupe({ url });
  for (let i = 0; i < 20; i++) await troupe.request("GET", "/v1/runs", { signal });
  await seqs(troupe.runs.events("r1", { signal }));
  for await (const e of troupe.runs.events("r1", { signal })) if (e.seq === 2) break;
  troupe.runs.events("r1", { signal }); // never read
  assert.equal(getEventListeners(signal, "abort").length, 0);
  assert.equal(asked, 23);
  const closed = troupe.stream("helper", "hi");
  closed.close();
  assert.equal((await closed.next()).done, true);
  assert.equal(asked, 23, "a stream that was closed before it was read sends no message");
});

test("a clean end before the run has ended resumes, again and again (langgraphjs 2701, event-source-plus 26)", async (t) => {
  const asked = [];
  const url = await listen(t, (q, w) => {
    asked.push(`${q.method} ${after(q)}`);
    stream(w);
    w.end(frame(answer[asked.length - 1]));
  });
  const events = new Troupe({ url }).stream("helper", "hi");
  assert.deepEqual(await seqs(events), [1, 2, 3, 4]);
  assert.deepEqual(asked, ["POST 0", "GET 1", "GET 2", "GET 3"], "the message was sent once");
  assert.equal(events.text, "一 two");
});

test("an error in the middle of an event: the half one counts for nothing (plano 980)", async (t) => {
  let count = 0;
  const url = await listen(t, (q, w) => {
    stream(w);
    const all = bytes(answer.filter((e) => e.seq > after(q)).map(frame).join(""));
    if (++count > 1) return w.end(all);
    w.write(all.slice(0, bytes(frame(answer[0])).length + 90), () => w.destroy()); // within a character
  });
  assert.deepEqual(await seqs(new Troupe({ url }).runs.events("r1")), [1, 2, 3, 4]);
});

test("a proxy that drops Last-Event-ID begins again: no event is given twice (langgraphjs 2805)", async (t) => {
  let count = 0;
  const url = await listen(t, (q, w) => {
    stream(w);
    w.end(answer.slice(0, ++count + 1).map(frame).join(""));
  });
  assert.deepEqual(await seqs(new Troupe({ url }).runs.events("r1")), [1, 2, 3, 4]);
});

test("a message is sent again with its key only, and none without a key (fetch-event-source 54, 79)", async (t) => {
  const keys = [];
  const url = await listen(t, async (q, w) => {
    for await (const _ of q);
    keys.push(q.headers["idempotency-key"]);
    if (keys.length < 3) return w.destroy();
    stream(w);
    w.end(answer.map(frame).join(""));
  });
  const troupe = new Troupe({ url });
  assert.deepEqual(await seqs(troupe.stream("helper", "hi", { key: "k1" })), [1, 2, 3, 4]);
  assert.deepEqual(keys, ["k1", "k1", "k1"]);
  keys.length = 0;
  await assert.rejects(troupe.request("POST", "/v1/tools", { body: {} }), (e) => e.code === "server_unreachable" && /may have been performed/.test(e.message));
  assert.deepEqual(keys, [undefined]);
});

test("the page of a proxy while the server restarts is waited out, but not for a message without a key", async (t) => {
  let count = 0;
  const url = await listen(t, (q, w) => {
    if (++count % 3) return w.writeHead(502 + (count % 2), { "Content-Type": "text/html" }).end("<h1>Bad gateway</h1>");
    if (q.url.endsWith("/events")) {
      stream(w);
      return w.end(answer.map(frame).join(""));
    }
    w.end('{"run_id": "r1"}');
  });
  const troupe = new Troupe({ url, patience: 10 });
  assert.equal((await troupe.start("helper", "hi")).run_id, "r1");
  assert.deepEqual(await seqs(troupe.runs.events("r1")), [1, 2, 3, 4]);
  assert.equal(count, 6);
  await assert.rejects(troupe.request("POST", "/v1/tools", { body: {} }), { code: "not_an_answer", status: 503 });
  assert.equal(count, 7);
});

test("a deletion whose answer was lost has succeeded", async (t) => {
  let count = 0;
  const url = await listen(t, (q, w) => {
    if (++count === 1) return w.destroy();
    w.writeHead(404).end('{"code": "session_not_found", "detail": "gone"}');
  });
  await new Troupe({ url }).sessions.delete("s");
  assert.equal(count, 2);
  await assert.rejects(new Troupe({ url }).sessions.delete("s"), { code: "session_not_found" });
});

test("204 ends a stream, a page of a proxy and a redirect are errors at once", async (t) => {
  const seen = [];
  let reply;
  const url = await listen(t, (q, w) => {
    seen.push(q.url);
    reply(w);
  });
  const troupe = new Troupe({ url, key: "troupe_x" });
  reply = (w) => w.writeHead(204).end();
  assert.deepEqual(await seqs(troupe.runs.events("r1")), []);
  reply = (w) => w.writeHead(200, { "Content-Type": "text/html" }).end("<h1>Sign in</h1>");
  await assert.rejects(seqs(troupe.runs.events("r1")), { code: "not_an_answer" });
  await assert.rejects(troupe.sessions.get("s"), (e) => e.code === "not_an_answer" && /Sign in/.test(e.message));
  reply = (w) => w.writeHead(307, { Location: "https://other.example/" }).end();
  await assert.rejects(troupe.sessions.get("s"), { code: "not_an_answer" });
  reply = (w) => w.writeHead(413, { "Content-Type": "text/html" }).end("<h1>413</h1>");
  await assert.rejects(troupe.sessions.get("s"), { code: "not_an_answer", status: 413 });
  assert.equal(seen.length, 5);
});

test("what a slow reader does not take stays with the server", async () => {
  let pulled = 0;
  const body = new ReadableStream({
    pull(controller) {
      pulled++;
      controller.enqueue(bytes(frame(event(pulled, pulled < 100 ? "agent_stream_delta" : "run_done", { text: "x" }))));
      if (pulled === 100) controller.close();
    },
  }, { highWaterMark: 0 });
  const events = new Troupe({ url: "http://x", fetch: async () => new Response(body, { headers: { "Content-Type": "text/event-stream" } }) }).runs.events("r1");
  for (let i = 1; i <= 3; i++) {
    await events.next();
    assert.equal(pulled, i);
  }
  assert.equal((await seqs(events)).length, 97);
});

test("a stream that is left frees its connection, also of a fetch that knows no signals", async () => {
  let cancelled;
  const freed = new Promise((resolve) => (cancelled = resolve));
  const body = new ReadableStream({ start: (c) => c.enqueue(bytes(frame(answer[0]))), cancel: cancelled });
  for await (const e of new Troupe({ url: "http://x", fetch: async () => new Response(body, { headers: { "Content-Type": "text/event-stream" } }) }).runs.events("r1")) if (e) break;
  await freed;
});

test("a function for a token that never answers holds nothing up", async () => {
  const troupe = new Troupe({ url: "http://127.0.0.1:9", token: () => new Promise(() => {}), patience: 0 });
  await assert.rejects(troupe.request("GET", "/v1/runs", { seconds: 0.1 }), { code: "server_unreachable" });
  const controller = new AbortController();
  const next = troupe.stream("helper", "hi", { signal: controller.signal }).next();
  controller.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
});

test("half a surrogate pair, as of a text that was cut, is sent as a character", async (t) => {
  let got;
  const url = await listen(t, async (q, w) => {
    for await (const part of q) got = (got ?? "") + part;
    w.end("{}");
  });
  await new Troupe({ url }).send("helper", "cut \ud83d, whole \ud83c\udf0d, written \\ud83d");
  assert.equal(JSON.parse(got).content, "cut \ufffd, whole 🌍, written \\ud83d");
});

test("the credential is in a header, and never in a URL or an error", async (t) => {
  const urls = [];
  const url = await listen(t, (q, w) => {
    urls.push(q.url);
    assert.equal(q.headers.authorization, "Bearer troupe_secret");
    w.writeHead(403).end(`{"code": "forbidden_scope", "detail": "no"}`);
  });
  const troupe = new Troupe({ url, token: "troupe_secret" });
  for (const call of [() => troupe.sessions.get("s"), () => troupe.send("a", "x"), () => troupe.stream("a", "x").next()]) {
    await assert.rejects(call(), (e) => !JSON.stringify([e, e.message, e.stack]).includes("secret"));
  }
  assert.ok(urls.every((u) => !u.includes("secret")));
  await assert.rejects(new Troupe({ url, token: "a\r\nX-Admin: 1" }).sessions.get("s"), { code: "unauthorized" });
});
