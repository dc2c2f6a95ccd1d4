// SPDX-License-Identifier: Apache-2.0
// A client of the channel protocol with the package ws, by docs/channel.md. Its connections are cut at random
// bytes. It prints each message of its session once, behind "m ".
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import WebSocket from "ws";

const [url, key] = process.argv.slice(2);
const session = "s1";
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = async (word) => {
  console.log(word);
  return (await input.next()).value;
};
const fail = (text) => {
  console.error(text);
  process.exit(1);
};

class Channel {
  cursor = "";
  requests = new Map();
  tools = new Set();
  messages = []; // received and not taken
  wake = () => {};

  open() {
    let held = [];
    const ws = new WebSocket(url, ["troupe.v1+json", key]);
    ws.on("open", () => ws.send(JSON.stringify({ type: "hello", device_id: "node", resume: { session_id: session, after: this.cursor } })));
    ws.on("error", () => {});
    ws.on("close", () => this.closed || setTimeout(() => this.open(), 50));
    ws.on("message", (data) => {
      const text = data.toString();
      const m = JSON.parse(text);
      if (m.state === "READY") {
        this.ws = ws;
        for (const r of this.requests.values()) ws.send(JSON.stringify(r));
      } else if (this.requests.has(m.request_id) && (m.state === "ACCEPTED" || m.type === "error")) {
        this.requests.delete(m.request_id);
        if (m.type === "error") fail(`got ${text}`);
      } else if (m.type === "tool_request") {
        if (this.tools.has(m.tool_call_id)) return;
        this.tools.add(m.tool_call_id);
        this.take([m]);
      } else if (!m.run_id || (m.type === "run_started" && !m.cursor)) {
        if (m.type === "error" && m.code !== "session_not_found") fail(`got ${text}`);
      } else {
        held.push({ text, m });
        if (!m.cursor) return;
        this.cursor = m.cursor;
        for (const one of held) console.log("m", one.text);
        this.take(held.map((one) => one.m));
        held = [];
      }
    });
  }

  take(all) {
    this.messages.push(...all);
    this.wake();
  }

  send(type, fields) {
    const r = { type, request_id: randomUUID(), ...fields };
    this.requests.set(r.request_id, r);
    if (this.ws?.readyState === WebSocket.OPEN) this.ws.send(JSON.stringify(r));
  }

  async next() {
    while (!this.messages.length) await new Promise((ok) => (this.wake = ok));
    return this.messages.shift();
  }

  async until(type) {
    for (;;) {
      const m = await this.next();
      if (m.type === type) return m;
      if (m.type === "error") fail(`want ${type}, got ${JSON.stringify(m)}`);
    }
  }

  async invoke(agent_id, content) {
    this.send("agent_invoke", { session_id: session, agent_id, message: { role: "user", content } });
    return (await this.until("run_started")).run_id;
  }
}

const c = new Channel();
c.open();
do {
  await c.invoke("streamer", "400");
  await c.until("done");
} while ((await ask("cuts")) !== "true");
await c.invoke("concierge", 'use user.pay {"amount": 20}');
const asked = await c.until("approval_required");
c.send("approval_decision", { run_id: asked.run_id, approval_id: asked.approval_id, decision: "approve", reason: "asked Anna" });
const tool = await c.until("tool_request");
if (tool.args.amount !== 20) fail(`got ${JSON.stringify(tool)}`);
c.send("tool_result", { run_id: tool.run_id, tool_call_id: tool.tool_call_id, ok: true, result: { paid: true } });
await c.until("done");
const run = await c.invoke("streamer", "endless");
await c.until("delta");
c.send("cancel_run", { run_id: run });
if ((await c.until("error")).code !== "cancelled") fail("the run was not cancelled");
await c.invoke("streamer", "hold");
await c.until("delta");
await ask("restart");
await c.until("delta"); // the agent is asked again
await ask("release");
await c.until("done");
c.closed = true;
c.ws.close();
input.return();
process.stdin.destroy();
