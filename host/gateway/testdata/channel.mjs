// SPDX-License-Identifier: Apache-2.0
// Drives the channel of the chat page over connections that take what is sent and answer nothing after the hello: node
// channel.mjs MODULE >events. An event is a line: what the page shows of the connection, and what was sent on it.
import { mock } from "node:test";

mock.timers.enable({ apis: ["setTimeout", "Date"] });
const sockets = [];
const events = [];
class Silent {
  static OPEN = 1;
  readyState = 1;
  constructor() {
    sockets.push(this);
  }
  send(text) {
    const m = JSON.parse(text);
    events.push(`connection ${sockets.indexOf(this) + 1}: ${m.type}${m.request_id ? ` ${sent.indexOf(m.request_id) + 1}` : ""}`);
    if (m.type === "hello") this.onmessage({ data: JSON.stringify({ type: "state", state: "READY", detail: { user_id: "anna" } }) });
  }
  close() {}
}
globalThis.WebSocket = Silent;
globalThis.location = { protocol: "http:", host: "x" };
const listeners = {};
globalThis.addEventListener = (name, call) => (listeners[name] = call);
globalThis.document = { addEventListener() {} };
const sent = [];

const { Channel } = await import(process.argv[2]);
const channel = new Channel({ url: "http://x", credentials: { bearer: async () => "" }, device: "device" });
channel.addEventListener("status", ({ detail }) => events.push(detail.state));
channel.connect();
await sockets[0].onopen();
channel.cursors.set("s", ""); // followed
const requests = channel.requests;
const add = channel.add.bind(channel);
channel.add = (r) => (sent.push(r.request_id), add(r));
channel.request("agent_invoke", { session_id: "s" });
mock.timers.tick(34000);
events.push("after 34 s");
mock.timers.tick(2000);
for (let i = 0; i < 20 && sockets.length === 1; i++) mock.timers.tick(100);
await sockets.at(-1).onopen();
requests.clear();
mock.timers.tick(60000);
listeners.offline();
events.push(`${sockets.length} connections`);
console.log(JSON.stringify(events));
