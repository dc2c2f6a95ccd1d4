// SPDX-License-Identifier: Apache-2.0
// Follows a stream of events over HTTP, and resumes it after a lost connection.

import { apiKey, Problem, parse } from "./api.js";

const pauses = [500, 1000, 2000, 5000]; // ms before the next connection

// follow calls each(event) for the events at a path, in order and each once, until the stream has ended by itself or
// the signal is aborted. state(text) is told "ready" and "away". A stream that the server refuses is a Problem.
export async function follow(path, signal, each, state) {
  let last = "";
  for (let failures = 0; !signal.aborted; ) {
    try {
      const headers = { Accept: "text/event-stream" };
      if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
      if (last) headers["Last-Event-ID"] = last;
      const answer = await fetch(path, { headers, signal });
      if (answer.status >= 400 && answer.status < 500 && answer.status !== 429) throw new Problem(answer.status, await answer.text().then(parse).catch(() => ({})));
      if (!answer.ok || answer.status === 204) {
        if (answer.status === 204) return;
        throw new Error(`the server answered ${answer.status}`);
      }
      state("ready");
      let rest = "";
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      for (let part; !(part = await reader.read()).done; ) {
        const frames = (rest + decoder.decode(part.value, { stream: true })).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          let id = "", data = "";
          for (const line of frame.split("\n")) {
            if (line.startsWith("id:")) id = line.slice(3).trim();
            else if (line.startsWith("data:")) data += line.slice(5);
          }
          if (!data || !id) continue; // a comment, or the reason for which the stream is closed
          failures = 0;
          last = id;
          each(parse(data));
        }
      }
      if (each.ended?.()) return;
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof Problem) throw e;
    }
    state("away");
    await new Promise((resolve) => setTimeout(resolve, pauses[Math.min(failures++, pauses.length - 1)]));
  }
}
