// SPDX-License-Identifier: Apache-2.0
// The channel over a real server, and over connections that are cut.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Troupe, TroupeError } from "../src/troupe.js";
import { agent, cutter, Server } from "./server.js";

// reader collects the messages of a channel and waits for one.
class Reader {
  all = [];
  #wake = [];
  #taken = 0;

  constructor(channel, type = "message") {
    channel.addEventListener(type, ({ detail }) => {
      this.all.push(detail);
      for (const wake of this.#wake.splice(0)) wake();
    });
  }

  // until returns the next message that a function selects.
  async until(selects) {
    for (;;) {
      while (this.#taken < this.all.length) {
        const m = this.all[this.#taken++];
        if (selects(m)) return m;
      }
      await new Promise((wake) => this.#wake.push(wake));
    }
  }
}

const done = (run) => (m) => m.run_id === run && (m.type === "done" || m.type === "error");

test("messages, a client tool, an approval and a cancellation", async (t) => {
  const server = await Server.start(t);
  await server.post("/v1/tools", { tool_name: "user.ask", kind: "client_tool" });
  await server.post("/v1/tools", { tool_name: "user.pay", kind: "client_tool", policy: "require_approval" });
  await server.post("/v1/agents", { name: "concierge", tools: ["user.ask", "user.pay"] });
  await agent(t, server, "endless", async (_, send, q) => {
    send("delta", { text: "first" });
    await new Promise((resolve) => q.once("close", resolve));
  });
  const asked = [];
  const channel = new Troupe({ url: server.url }).channel({
    device: "node-1",
    meta: { app: "test" },
    tools: {
      "user.ask": async (args, { tool_call_id, signal }) => {
        asked.push(args);
        assert.ok(tool_call_id && !signal.aborted);
        return { answer: "blue" };
      },
      "user.pay": () => {
        throw Object.assign(new Error("the card is empty"), { code: "no_money" });
      },
    },
  });
  t.after(() => channel.close());
  const messages = new Reader(channel);
  channel.connect();

  const { run_id, session_id } = await channel.send("concierge", 'use user.ask {"question": "Which colour?"}');
  const answer = await messages.until(done(run_id));
  assert.equal(answer.type, "done");
  assert.deepEqual(asked, [{ question: "Which colour?" }]);
  assert.deepEqual(messages.all.filter((m) => m.run_id === run_id && m.type === "run_started").length, 1);
  assert.match(messages.all.filter((m) => m.type === "delta").map((m) => m.text).join(""), /blue/);

  const paid = await channel.send("concierge", 'use user.pay {"amount": 20}', { session: session_id });
  assert.equal(paid.session_id, session_id);
  const wanted = await messages.until((m) => m.type === "approval_required");
  await channel.approve(wanted.approval_id, { reason: "asked Anna" });
  const failed = await messages.until(done(paid.run_id));
  assert.match(JSON.stringify([failed, messages.all.filter((m) => m.type === "delta")]), /the card is empty/);
  await assert.rejects(channel.reject(wanted.approval_id), (e) => e instanceof TroupeError && e.code === "approval_decided");
  await assert.rejects(channel.send("none", "hi"), { code: "agent_not_found" });

  const endless = await channel.send("endless", "hi");
  await messages.until((m) => m.run_id === endless.run_id && m.type === "delta");
  await channel.cancel(endless.run_id);
  assert.equal((await messages.until(done(endless.run_id))).code, "cancelled");
});

test("each message of a session arrives once over cuts and kill -9, and each message is sent once", async (t) => {
  const server = await Server.start(t, "--keyless=off", "--allow=127.0.0.0/8");
  const key = await server.command("keys", "create", "--scope", "admin");
  const auth = { Authorization: `Bearer ${key}` };
  await server.post("/v1/tools", { tool_name: "user.ask", kind: "client_tool" }, auth);
  await server.post("/v1/agents", { name: "concierge", tools: ["user.ask"] }, auth);
  await agent(t, server, "streamer", async (content, send) => {
    for (let i = 0; i < Number(content); i++) {
      send("delta", { text: `piece ${i} ` });
      send("state", { state: `step ${i}` });
    }
  }, auth);
  let seed = 11;
  const cuts = await cutter(t, server.url, () => (cuts?.count >= 8 ? undefined : 300 + ((seed = (seed * 48271) % 2147483647) % 4000)));
  let performed = 0;
  const channel = new Troupe({ url: cuts.url, key }).channel({ device: "d", tools: { "user.ask": () => ++performed } });
  t.after(() => channel.close());
  const messages = new Reader(channel);
  channel.connect();
  const runs = [];
  for (let i = 0; i < 6; i++) {
    const { run_id } = await channel.send("streamer", "20", { session: "s1" });
    runs.push(run_id);
    assert.equal((await messages.until(done(run_id))).type, "done");
    if (i === 2) await server.restart();
  }
  const tool = await channel.send("concierge", "use user.ask {}", { session: "s1" });
  await messages.until(done(tool.run_id));
  assert.equal(performed, 1);
  assert.ok(cuts.count >= 3, `${cuts.count} cuts`);

  const other = new Troupe({ url: server.url, key }).channel();
  t.after(() => other.close());
  const direct = new Reader(other);
  other.follow("s1");
  other.connect();
  await direct.until((m) => m.state === "LIVE");
  const ofRuns = (reader) => reader.all.filter((m) => m.run_id && m.type !== "tool_request");
  assert.deepEqual(ofRuns(messages), ofRuns(direct));
  assert.deepEqual(messages.all.filter((m) => m.type === "run_started").map((m) => m.run_id), [...runs, tool.run_id]);
});

test("a session that is given is followed from its end, and another client's messages arrive", async (t) => {
  const server = await Server.start(t);
  await server.post("/v1/agents", { name: "helper" });
  const troupe = new Troupe({ url: server.url });
  await troupe.send("helper", "say before", { session: "trip" });
  const channel = troupe.channel();
  t.after(() => channel.close());
  const messages = new Reader(channel);
  channel.connect();
  const { run_id } = await channel.send("helper", "say mine", { session: "trip" });
  await messages.until(done(run_id));
  assert.ok(!JSON.stringify(messages.all).includes("before"));
  const answer = await troupe.send("helper", "say theirs", { session: "trip" });
  await messages.until(done(answer.run_id));
  await troupe.sessions.delete("trip");
  assert.equal((await messages.until((m) => m.type === "error")).code, "session_deleted");
});

test("a token that has ended is renewed, one that is refused ends the attempts", async (t) => {
  const server = await Server.start(t, "--keyless=off");
  const key = await server.command("keys", "create", "--scope", "admin");
  const auth = { Authorization: `Bearer ${key}` };
  await server.post("/v1/agents", { name: "front" }, auth);
  const issued = await server.post("/v1/tokens", { user: "anna", agents: ["front"] }, auth);
  let token = "troupe_token.stale";
  const urls = [];
  class Recorded extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols);
      urls.push(`${url} ${protocols}`);
    }
  }
  const channel = new Troupe({ url: server.url, WebSocket: Recorded, token: (about) => (token = about ? issued.token : token) }).channel();
  t.after(() => channel.close());
  const ready = new Reader(channel, "ready");
  channel.connect();
  assert.equal((await ready.until(() => true)).user_id, "anna");
  const messages = new Reader(channel);
  const { run_id } = await channel.send("front", "say hi");
  assert.equal((await messages.until(done(run_id))).type, "done");
  assert.ok(urls.every((u) => !u.includes("token")), "no URL and no subprotocol has a token");

  const refused = new Troupe({ url: server.url, token: "troupe_token.stale" }).channel();
  t.after(() => refused.close());
  const states = new Reader(refused, "status");
  const sent = refused.send("front", "hi");
  refused.connect();
  await assert.rejects(sent, { code: "unauthorized", status: 401 });
  assert.equal((await states.until((s) => s.state === "refused")).state, "refused");
});

test("requests are bounded in number and in time, and say whether they may have been performed", async (t) => {
  const channel = new Troupe({ url: "http://127.0.0.1:9" }).channel({ patience: 0.2 });
  t.after(() => channel.close());
  channel.connect();
  const sent = channel.send("helper", "hi", { key: "k1" });
  await assert.rejects(sent, (e) => e.code === "server_unreachable" && e.key === "k1" && e.hint !== "");
  const controller = new AbortController();
  const first = channel.send("helper", "hi", { key: "k2" });
  await assert.rejects(channel.send("helper", "hi", { key: "k2" }), { code: "invalid_request", field: "key" });
  await assert.rejects(first, { code: "server_unreachable", key: "k2" });
  const aborted = channel.send("helper", "hi", { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(aborted, /enough/);
  assert.equal(channel.requests.size, 0);
  for (let i = 0; i < 256; i++) channel.request("cancel_run", { run_id: "r" });
  await assert.rejects(channel.cancel("r"), { code: "agent_busy" });
  channel.close();
  assert.throws(() => new Troupe({ WebSocket: null }).channel(), { code: "websocket_missing" });

  // A server that takes a request and answers nothing: it may have been performed.
  class Silent {
    readyState = 1;
    constructor() {
      queueMicrotask(() => this.onopen());
    }
    send(text) {
      if (JSON.parse(text).type === "hello") this.onmessage({ data: '{"type": "state", "state": "READY", "detail": {}}' });
    }
    close() {}
  }
  const silent = new Troupe({ url: "http://127.0.0.1:9", WebSocket: Silent }).channel({ patience: 0.2 });
  t.after(() => silent.close());
  silent.connect();
  await assert.rejects(silent.cancel("r"), { code: "outcome_unknown" });
});
