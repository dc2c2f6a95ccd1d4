// SPDX-License-Identifier: Apache-2.0
// Uses of the types that a compiler accepts, and some that it must refuse: make sdk-js-types.
import { Channel, EventStream, Troupe, TroupeError, type Answer, type RunEvent } from "../src/troupe.js";

const troupe = new Troupe({ url: "http://127.0.0.1:8283", token: async (about) => about?.refused ?? null });
const answer: Answer = await troupe.send("helper", [{ type: "text", text: "hi" }], { session: "s", ifBusy: "queue", timeout: 3, signal: new AbortController().signal });
const stream: EventStream = troupe.stream("helper", "hi", { onState: (state: "ready" | "away") => state });
for await (const event of stream) {
  const e: RunEvent = event;
  console.log(e.payload?.text, stream.text, stream.runId);
}
for await (const session of troupe.sessions.list()) console.log(session.agents?.[0]?.agent_id);
for await (const run of troupe.runs.list({ status: "DONE" })) console.log(run.run_id);
const channel: Channel = troupe.channel({ tools: { ask: (args, { signal }) => signal.aborted }, WebSocket: class {} });
channel.addEventListener("message", ({ detail: m }) => console.log(m.type, m.session_id));
channel.addEventListener("status", ({ detail }) => {
  const state: "connecting" | "ready" | "waiting" | "refused" | "closed" = detail.state;
  return state;
});
await channel.approve("ap_1", { reason: "asked Anna" });
try {
  await troupe.request("GET", "/v1/runs", { query: { limit: 2 } });
} catch (e) {
  if (e instanceof TroupeError) console.log(e.code, e.retryAfter, e.hint, e.key);
}
// @ts-expect-error a message is missing
troupe.send("helper");
// @ts-expect-error no such choice
troupe.send("helper", "hi", { ifBusy: "other" });
// @ts-expect-error no such member
answer.nothing;
// @ts-expect-error made by stream and events only
new EventStream();
