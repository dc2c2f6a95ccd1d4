// SPDX-License-Identifier: Apache-2.0
// The page of README.md in Chromium, of another origin than the server's, with a token that its own server issues.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { agent, listen, Server } from "./server.js";

const chromium = process.env.TROUPE_BROWSER ?? "chromium";

// The second half of the page: what the example has shown, then the channel and a stream that outlasts kill -9.
const script = `
import { Troupe } from "./troupe.js";
const report = (line) => fetch("/report", { method: "POST", body: line });
try {
  await import("./example.js");
  await report("example " + document.body.textContent);
  const url = new URLSearchParams(location.search).get("server");
  let tokens = 0;
  const troupe = new Troupe({ url, token: async () => (tokens++, (await fetch("/my/token")).text()) });

  const stream = troupe.stream("streamer", "go", { session: "s1" });
  const seqs = [];
  for await (const e of stream) {
    seqs.push(e.seq);
    if (e.type === "agent_stream_delta" && e.payload.text.includes("first")) await report("restart");
  }
  await report("stream " + seqs.every((n, i) => n === i + 1) + " " + stream.text);

  const channel = troupe.channel({ device: "page" });
  const text = [];
  const ended = new Promise((resolve) => channel.addEventListener("message", ({ detail: m }) => {
    if (m.type === "delta") text.push(m.text);
    if (m.type === "done" || m.type === "error") resolve(m.type);
  }));
  channel.connect();
  await channel.send("helper", "say on the channel");
  await report("channel " + (await ended) + " " + text.join(""));
  channel.close();

  const titles = [];
  for await (const s of troupe.sessions.list()) titles.push(s.agents[0].agent_id);
  await report("sessions " + titles.sort());
  await report("refused " + (await troupe.send("nobody", "hi").catch((e) => e.code)));
  await report("aborted " + (await troupe.send("helper", "hi", { signal: AbortSignal.abort() }).catch((e) => e.name)));
} catch (e) {
  await report("failed " + e.code + " " + e.stack);
}
await report("end");
`;

test("a page streams, resumes over kill -9 and uses the channel", async (t) => {
  const lines = [];
  let ended, example, server, key, proceed;
  const end = new Promise((resolve) => (ended = resolve));
  const held = new Promise((resolve) => (proceed = resolve));
  const page = await listen(t, async (q, w) => {
    const path = new URL(q.url, "http://x").pathname;
    if (path === "/my/token") {
      const { token } = await server.post("/v1/tokens", { user: "anna", agents: ["helper", "streamer"], origin: page }, { Authorization: `Bearer ${key}` });
      return w.end(token);
    }
    if (path === "/report") {
      let line = "";
      for await (const part of q) line += part;
      if (line === "restart") {
        await server.restart();
        proceed();
      } else lines.push(line);
      w.end();
      if (line === "end") ended();
      return;
    }
    if (path.endsWith(".js")) {
      w.setHeader("Content-Type", "text/javascript");
      if (path === "/page.js") return w.end(script);
      if (path === "/example.js") return w.end(example);
      return readFile(new URL(`../src${path}`, import.meta.url)).then((text) => w.end(text), () => w.writeHead(404).end());
    }
    w.setHeader("Content-Type", "text/html");
    w.end('<!doctype html><title>A shop</title><script type="module" src="/page.js"></script>');
  });
  server = await Server.start(t, "--keyless=off", "--allow=127.0.0.0/8", `--origin=${page}`);
  key = await server.command("keys", "create", "--scope", "admin");
  const auth = { Authorization: `Bearer ${key}` };
  await server.post("/v1/agents", { name: "helper" }, auth);
  await agent(t, server, "streamer", async (_, send) => {
    send("delta", { text: "the first ‹ü› " });
    await held;
    send("delta", { text: "and the last 🌍" });
  }, auth);
  const readme = await readFile(new URL("../README.md", import.meta.url), "utf8");
  example = readme.match(/^```js browser\n(.*?)^```/ms)[1].replaceAll("http://127.0.0.1:8283", server.url);

  const profile = await mkdtemp(join(tmpdir(), "troupe-js-browser-"));
  const browser = spawn(chromium, ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", `--user-data-dir=${profile}`, `${page}/?server=${encodeURIComponent(server.url)}`], { stdio: "ignore" });
  const exited = new Promise((resolve, reject) => browser.once("error", reject).once("exit", resolve));
  try {
    await Promise.race([end, exited.then(() => assert.fail("the browser has ended"))]);
  } finally {
    browser.kill();
    await exited.catch(() => {});
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
  assert.deepEqual(lines, [
    "example hello",
    "stream true the first ‹ü› and the last 🌍",
    "channel done on the channel",
    "sessions helper,helper,streamer",
    "refused agent_not_found",
    "aborted AbortError",
    "end",
  ]);
});
