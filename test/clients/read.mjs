// SPDX-License-Identifier: Apache-2.0
// Reads a stream with npm's EventSource and prints the ID and name of each event.
import { EventSource } from "eventsource";

const source = new EventSource(process.argv[2]);
const names = ["user_input", "run_started", "run_paused", "run_resumed", "agent_invoke_started", "agent_stream_delta", "agent_invoke_done",
  "attempt", "llm_call_started", "llm_call_done", "run_done", "run_failed", "run_cancelled"];
const keepAlive = setInterval(() => {}, 60_000); // keeps Node.js running while the EventSource waits to reconnect
for (const name of names) {
  source.addEventListener(name, (e) => {
    console.log(e.lastEventId, name);
    if (name === "run_done") {
      source.close();
      clearInterval(keepAlive);
    }
  });
}
