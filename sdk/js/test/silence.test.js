// SPDX-License-Identifier: Apache-2.0
// A connection that is silent. The clock of the whole process is a mock, so the test has a file of its own.
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import { Troupe } from "../src/troupe.js";
import { listen } from "./server.js";

const event = (seq, type, payload = {}) => ({ run_id: "r1", seq, type, payload });
const frame = (e) => `id: ${e.seq}\nevent: ${e.type}\ndata: ${JSON.stringify(e)}\n\n`;
const answer = [event(1, "user_input"), event(2, "agent_stream_delta", { text: "one" }), event(3, "run_done", { text: "one" })];

test("a server that is silent is given up, also while it answers (fetch-event-source 75)", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const waiting = [];
  let wake = () => {};
  const url = await listen(t, (q, w) => {
    waiting.push(w);
    wake();
    if (waiting.length === 1) return; // it accepts the request, and that is all
    w.writeHead(200, { "Content-Type": "text/event-stream" });
    const rest = answer.slice(Number(q.headers["last-event-id"] ?? 0)).map(frame);
    if (waiting.length === 2) w.write(rest[0]);
    else w.end(rest.join(""));
  });
  const events = new Troupe({ url }).runs.events("r1");
  // passes lets the time pass until something has happened.
  const passes = async (seconds, what) => {
    t.mock.timers.tick(seconds * 1000 - 1);
    const pauses = setInterval(() => t.mock.timers.tick(100), 2);
    const value = await what;
    clearInterval(pauses);
    return value;
  };
  const first = events.next();
  while (!waiting.length) await new Promise((resolve) => (wake = resolve));
  const gone = once(waiting[0], "close");
  assert.equal((await passes(45, first)).value.seq, 1);
  await gone;
  const second = events.next();
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal((await passes(45, second)).value.seq, 2);
  assert.equal((await events.next()).value.seq, 3);
  assert.equal(waiting.length, 3);
});
