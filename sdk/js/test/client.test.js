// SPDX-License-Identifier: Apache-2.0
// Messages, streams, sessions, approvals and runs of a real server.
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Troupe, TroupeError } from "../src/troupe.js";
import { agent, cutter, Server } from "./server.js";

const refused = (code, more = {}) => (e) => {
  assert.ok(e instanceof TroupeError, String(e));
  assert.equal(e.code, code);
  assert.ok(e.message && e.hint, `${code} has a message and a hint`);
  for (const [name, value] of Object.entries(more)) assert.deepEqual(e[name], value, name);
  return true;
};

const all = async (items) => {
  const list = [];
  for await (const item of items) list.push(item);
  return list;
};

test("messages, sessions and runs", async (t) => {
  const server = await Server.start(t);
  await server.post("/v1/agents", { name: "helper" });
  const troupe = new Troupe({ url: server.url });

  const answer = await troupe.send("helper", "say hellö 🌍", { session: "trip" });
  assert.deepEqual([answer.status, answer.content, answer.session_id, answer.agent_id], ["succeeded", "hellö 🌍", "trip", "helper"]);
  assert.ok(answer.usage.total_tokens > 0);
  assert.equal((await troupe.send("helper", [{ type: "text", text: "say parts" }], { session: "trip", timeout: 20 })).content, "parts");

  const key = "one message";
  const first = await troupe.send("helper", "say once", { session: "trip", key });
  assert.equal((await troupe.send("helper", "say once", { session: "trip", key })).run_id, first.run_id);
  await assert.rejects(troupe.send("helper", "say twice", { session: "trip", key }), refused("invalid_request", { status: 422, key }));

  const started = await troupe.start("helper", "say later", { session: "trip" });
  assert.equal((await troupe.runs.wait(started.run_id)).content, "later");

  const stream = troupe.stream("helper", "say streamed", { session: "trip" });
  const types = [];
  for await (const e of stream) types.push(e.type);
  assert.deepEqual([types[0], types.at(-1)], ["user_input", "run_done"]);
  assert.ok(types.includes("agent_stream_delta"));
  assert.equal(stream.text, "streamed");
  const streamed = await stream.answer();
  assert.deepEqual([streamed.content, streamed.session_id, streamed.agent_id, streamed.run_id], ["streamed", "trip", "helper", stream.runId]);

  const page = await troupe.sessions.messages("trip", { limit: 2 });
  assert.deepEqual(page.messages.map((m) => m.content), ["say streamed", "streamed"]);
  assert.equal(page.total, 10);
  assert.deepEqual((await all(troupe.sessions.history("trip"))).map((m) => m.content).slice(0, 3), ["streamed", "say streamed", "later"]);
  await troupe.sessions.create({ session: "trip", title: "A trip" });
  assert.equal((await troupe.sessions.get("trip")).title, "A trip");
  assert.deepEqual((await all(troupe.sessions.list())).map((s) => s.session_id), ["trip"]);
  assert.equal((await all(troupe.runs.list({ session_id: "trip", limit: 2 }))).length, 5);
  assert.equal((await troupe.runs.tree(first.run_id)).length, 1);
  assert.equal((await troupe.runs.get(first.run_id)).text, "once");
  assert.ok((await all(troupe.agents.list())).some((a) => a.agent_id === "helper"));
  assert.equal((await troupe.agents.get("helper")).agent_id, "helper");

  const watched = troupe.sessions.events("trip");
  assert.equal((await watched.next()).value.payload.text, "say hellö 🌍");
  await troupe.sessions.delete("trip");
  await assert.rejects(async () => all(watched), refused("session_deleted"));
  await assert.rejects(troupe.sessions.get("trip"), refused("session_not_found", { status: 404 }));
  await assert.rejects(troupe.send("none", "hi"), refused("agent_not_found", { status: 404 }));
  await assert.rejects(all(troupe.stream("none", "hi")), refused("agent_not_found", { status: 404 }));
  await server.post("/v1/agents", { name: "passing", durability: "none" });
  assert.equal((await troupe.send("passing", "say gone", { timeout: 20 })).content, "gone", "an agent without runs answers in time too");
  await assert.rejects(troupe.stream("passing", "say gone").answer(), refused("invalid_request", { status: 406 }));
  await assert.rejects(troupe.send("helper", ""), refused("invalid_request", { status: 400 }));
  await assert.rejects(troupe.send("a/b", "hi"), refused("invalid_request", { field: "agent" }));
});

test("a run that is cancelled, one that waits too long, and a signal that is aborted", async (t) => {
  const server = await Server.start(t);
  const troupe = new Troupe({ url: server.url });
  await agent(t, server, "endless", async (_, send, q) => {
    send("delta", { text: "first" });
    await new Promise((resolve) => q.once("close", resolve));
  });
  const stream = troupe.stream("endless", "hi");
  for await (const e of stream) if (e.type === "agent_stream_delta") break;
  assert.equal(stream.text, "first");
  assert.equal((await stream.next()).done, true, "break ends the stream");
  assert.equal((await troupe.runs.get(stream.runId)).status, "RUNNING", "the run continues");
  await assert.rejects(troupe.runs.wait(stream.runId, { timeout: 0.05 }), refused("run_open", { runId: stream.runId }));
  await assert.rejects(troupe.send("endless", "hi", { timeout: 0.05 }), refused("run_open"));

  const again = troupe.runs.events(stream.runId, { after: stream.cursor });
  const waiting = again.next();
  again.close();
  assert.equal((await waiting).done, true, "close ends a stream that waits");

  const controller = new AbortController();
  const aborted = troupe.runs.events(stream.runId, { after: stream.cursor, signal: controller.signal });
  const next = aborted.next();
  controller.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
  await assert.rejects(troupe.send("endless", "hi", { signal: AbortSignal.abort(new Error("before")) }), /before/);

  await troupe.runs.cancel(stream.runId);
  await assert.rejects(troupe.runs.events(stream.runId).answer(), refused("cancelled", { runId: stream.runId }));
  await assert.rejects(troupe.runs.wait(stream.runId), refused("cancelled"));
});

test("a budget is raised by what a person says, over HTTP and the channel", async (t) => {
  const dir = await mkdtemp(join(tmpdir(), "troupe-js-"));
  t.after(() => rm(dir, { recursive: true, force: true }));
  await writeFile(join(dir, "troupe.toml"), '[budget]\ntree_tokens = 10\nat_limit = "ask"\n');
  const server = await Server.start(t, `--config=${join(dir, "troupe.toml")}`);
  const troupe = new Troupe({ url: server.url });
  await server.post("/v1/agents", { name: "thinker" });
  const channel = troupe.channel({ device: "desk" });
  t.after(() => channel.close());
  channel.connect();
  for (const [by, approve] of [["HTTP", (id, options) => troupe.approvals.approve(id, options)], ["the channel", (id, options) => channel.approve(id, options)]]) {
    const { run_id } = await troupe.start("thinker", `say ${by}`);
    let waiting;
    while (!waiting) [waiting] = await all(troupe.approvals.list());
    assert.equal(waiting.kind, "budget");
    assert.ok(waiting.raise.tokens > 0);
    await assert.rejects(approve(waiting.approval_id, { raise: { tokens: 1.5 } }), /raise\.tokens: wrong JSON type/);
    await assert.rejects(approve(waiting.approval_id, { raise: { money: 1 } }), refused("invalid_request"));
    await approve(waiting.approval_id, { raise: { tokens: 54321 } });
    assert.equal((await troupe.runs.wait(run_id)).content, by);
    const raised = [];
    for await (const e of troupe.runs.events(run_id)) if (e.type === "tool_result") raised.push(e.payload.text);
    assert.deepEqual(raised, ['{"tokens":54321}'], by);
  }
});

test("an approval is decided once", async (t) => {
  const server = await Server.start(t);
  const troupe = new Troupe({ url: server.url });
  await server.post("/v1/tools", { tool_name: "pay", url: "http://127.0.0.1:9/", policy: "require_approval", on_failure: "return_error" });
  await server.post("/v1/agents", { name: "cashier", tools: ["pay"] });
  const stream = troupe.stream("cashier", 'use pay {"amount": 20}');
  let id = "";
  for await (const e of stream) {
    if (e.type !== "approval_required") continue;
    [{ approval_id: id }] = await all(troupe.approvals.list());
    assert.equal(id, e.payload.approval_id);
    assert.deepEqual((await troupe.approvals.get(id)).args, { amount: 20 });
    assert.equal((await troupe.approvals.reject(id, { reason: "too much" })).status, "REJECTED");
    await assert.rejects(troupe.approvals.approve(id), refused("approval_decided", { status: 409 }));
  }
  assert.match((await stream.answer()).content, /too much/);
  // send waits for the person too
  const sent = troupe.send("cashier", 'use pay {"amount": 30}');
  for (let pending = []; !pending.length; await troupe.approvals.reject(pending[0]?.approval_id ?? id, { reason: "no" }).catch(() => {})) pending = await all(troupe.approvals.list());
  assert.match((await sent).content, /no/);
});

test("a stream outlasts cut connections and kill -9, without gap or double", async (t) => {
  const server = await Server.start(t, "--keyless=off", "--allow=127.0.0.0/8");
  const key = await server.command("keys", "create", "--scope", "admin");
  const pieces = Array.from({ length: 60 }, (_, i) => `piece ${i} ‹ü›🌍 `);
  let proceed;
  const held = new Promise((resolve) => (proceed = resolve));
  await agent(t, server, "streamer", async (_, send) => {
    for (const [i, text] of pieces.entries()) {
      send("delta", { text });
      send("state", { state: `step ${i}` }); // pieces without a state between them are joined
      if (i === 30) await held;
    }
  }, { Authorization: `Bearer ${key}` });
  let seed = 7;
  const cuts = await cutter(t, server.url, () => (cuts?.count >= 15 ? undefined : 200 + ((seed = (seed * 48271) % 2147483647) % 3000)));
  const troupe = new Troupe({ url: cuts.url, key });
  const stream = troupe.stream("streamer", "go", { session: "s" });
  const events = [];
  for await (const e of stream) {
    events.push(e);
    if (e.payload?.name === "step 20") {
      await server.restart();
      proceed();
    }
  }
  assert.ok(cuts.count >= 5, `${cuts.count} cuts`);
  const direct = await troupe.request("GET", `/v1/runs/${stream.runId}/events?limit=1000`);
  assert.deepEqual(events, direct.events);
  assert.deepEqual(events.map((e) => e.seq), events.map((_, i) => i + 1));
  assert.equal(stream.text, pieces.join(""));
  assert.equal((await stream.answer()).content, pieces.join(""));
  assert.equal((await all(troupe.runs.list({ session_id: "s" }))).length, 1, "one message began one run");
});

test("a token that has ended is renewed once for all requests", async (t) => {
  const server = await Server.start(t, "--keyless=off", "--allow=127.0.0.0/8");
  const key = await server.command("keys", "create", "--scope", "admin");
  await server.post("/v1/agents", { name: "helper" }, { Authorization: `Bearer ${key}` });
  const issue = async () => (await server.post("/v1/tokens", { user: "anna", agents: ["helper"] }, { Authorization: `Bearer ${key}` })).token;
  let token = "troupe_token.stale";
  const renewals = [];
  let asked = 0;
  const troupe = new Troupe({ url: server.url, token: async (about) => {
    asked++;
    if (about) {
      renewals.push(about.refused);
      token = await issue();
    }
    return token;
  } });
  const answers = await Promise.all([1, 2, 3, 4].map((i) => troupe.send("helper", `say ${i}`, { session: `s${i}` })));
  assert.deepEqual(answers.map((a) => a.content), ["1", "2", "3", "4"]);
  assert.deepEqual([asked, renewals], [2, ["troupe_token.stale"]]);
  const stream = troupe.stream("helper", "say streamed");
  assert.equal((await stream.answer()).content, "streamed");
  // A customer waits for a run, whose events it may not read.
  let refusals, end;
  const held = new Promise((resolve) => (end = resolve));
  await agent(t, server, "slow", async (_, send) => {
    await held;
    send("delta", { text: "at last" });
  }, { Authorization: `Bearer ${key}` });
  const customer = new Troupe({ url: server.url, token: (await server.post("/v1/tokens", { user: "anna", agents: ["slow"] }, { Authorization: `Bearer ${key}` })).token, fetch: async (...of) => {
    const response = await fetch(...of);
    if (response.status === 403) end(refusals = true);
    return response;
  } });
  assert.equal((await customer.send("slow", "hi", { timeout: 30 })).content, "at last");
  assert.ok(refusals);
  await assert.rejects(new Troupe({ url: server.url, token: "troupe_token.stale" }).send("helper", "hi"), refused("unauthorized", { status: 401 }));
  await assert.rejects(new Troupe({ url: server.url, token: () => "troupe_token.stale" }).send("helper", "hi"), refused("unauthorized", { status: 401 }));
  await assert.rejects(troupe.request("GET", "/v1/tools"), refused("forbidden_scope", { status: 403 }));
});

test("a stream outlasts the end of its token", async (t) => {
  const server = await Server.start(t, "--keyless=off", "--allow=127.0.0.0/8");
  const auth = { Authorization: `Bearer ${await server.command("keys", "create", "--scope", "admin")}` };
  let proceed;
  const held = new Promise((resolve) => (proceed = resolve));
  await agent(t, server, "front", async (_, send) => {
    send("delta", { text: "first " });
    await held;
    send("delta", { text: "last" });
  }, auth);
  const issuers = [];
  const tokens = [];
  const token = async () => {
    const issuer = await server.post("/v1/keys", { scopes: ["operator"] }, auth);
    issuers.push(issuer);
    tokens.push((await server.post("/v1/tokens", { user: "anna", agents: ["front"] }, { Authorization: `Bearer ${issuer.key}` })).token);
    if (tokens.length === 2) proceed();
    return tokens.at(-1);
  };
  const stream = new Troupe({ url: server.url, token }).stream("front", "hi");
  const got = [];
  for await (const e of stream) {
    got.push(e.seq);
    if (e.type === "agent_stream_delta" && got.length < 6 && tokens.length === 1) {
      const answer = await fetch(`${server.url}/v1/keys/${issuers[0].key_id}`, { method: "DELETE", headers: auth });
      assert.ok(answer.ok);
    }
  }
  assert.equal(tokens.length, 2);
  assert.equal(stream.text, "first last");
  assert.deepEqual(got, got.map((_, i) => i + 1));
});

test("the events of a tree and of a session resume over cuts", async (t) => {
  const server = await Server.start(t, "--keyless=off");
  const key = await server.command("keys", "create", "--scope", "admin");
  const auth = { Authorization: `Bearer ${key}` };
  await server.post("/v1/agents", { name: "helper" }, auth);
  await server.post("/v1/agents", { name: "coordinator" }, auth);
  let seed = 3;
  const cuts = await cutter(t, server.url, () => (cuts?.count >= 6 ? undefined : 400 + ((seed = (seed * 48271) % 2147483647) % 2500)));
  const direct = new Troupe({ url: server.url, key });
  const troupe = new Troupe({ url: cuts.url, key });
  const { run_id } = await direct.send("coordinator", "ask the helper agent to say xyzzy", { session: "trip" });
  const tree = await all(troupe.runs.events(run_id, { tree: true }));
  const runs = await direct.runs.tree(run_id);
  assert.equal(runs.length, 2);
  for (const { run_id: id } of runs) {
    const { events } = await direct.request("GET", `/v1/runs/${id}/events`);
    assert.deepEqual(tree.filter((e) => e.run_id === id), events);
  }
  const { events } = await direct.request("GET", "/v1/sessions/trip/events");
  const watched = troupe.sessions.events("trip");
  const got = [];
  for await (const e of watched) if (got.push(e) === events.length) break;
  assert.deepEqual(got.map((e) => e.event_id), events.map((e) => e.event_id));
  assert.ok(cuts.count >= 2, `${cuts.count} cuts`);
  const rest = troupe.sessions.events("trip", { after: watched.cursor });
  await direct.send("helper", "say more", { session: "trip" });
  assert.equal((await rest.next()).value.payload.text, "say more");
  rest.close();
});

test("without a server each method ends in the time of patience", async () => {
  const troupe = new Troupe({ url: "http://127.0.0.1:9", patience: 0.3 });
  await assert.rejects(troupe.send("helper", "hi", { key: "k" }), refused("server_unreachable", { status: 0, key: "k" }));
  await assert.rejects(troupe.stream("helper", "hi").answer(), refused("server_unreachable"));
  await assert.rejects(new Troupe({ url: "http://127.0.0.1:9", patience: 0 }).sessions.get("s"), refused("server_unreachable"));
  for (const url of ["ftp://x", "http://user:secret@x", "http://x/?token=1", "null", ""]) assert.throws(() => new Troupe({ url }), refused("invalid_request", { field: "url" }));
});
