// SPDX-License-Identifier: Apache-2.0
// A real server of the tests, and proxies in front of it that fail as networks do.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { connect, createServer as createTCP } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const bin = process.env.TROUPE_BIN ?? "troupe";

// Server is the program in TROUPE_BIN with a data folder of its own. It is restarted on the same address.
export class Server {
  constructor(flags) {
    this.flags = flags;
    this.url = "";
  }

  static async start(t, ...flags) {
    const server = new Server(flags);
    server.dir = await mkdtemp(join(tmpdir(), "troupe-js-"));
    t.after(async () => {
      await server.kill();
      await rm(server.dir, { recursive: true, force: true });
    });
    await server.start();
    return server;
  }

  async start() {
    const listen = this.url.replace("http://", "") || "127.0.0.1:0";
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("TROUPE_")));
    this.process = spawn(bin, ["serve", `--data=${join(this.dir, "data")}`, `--listen=${listen}`, "--log-level=error", "--grace=1s", "--ballast-mib=0", ...this.flags], { stdio: ["ignore", "pipe", "inherit"], env: { ...env, TROUPE_WRITE_BUFFER_MIB: "1" } });
    for await (const line of createInterface({ input: this.process.stdout })) {
      this.url = line;
      break;
    }
    if (!this.url.startsWith("http")) throw new Error(`${bin} serve printed ${JSON.stringify(this.url)}`);
  }

  async kill(signal = "SIGKILL") {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const exited = once(this.process, "exit");
    this.process.kill(signal);
    await exited;
  }

  async restart() {
    await this.kill();
    await this.start();
  }

  // command runs the program with the data folder and returns its output.
  async command(...args) {
    const run = spawn(bin, [...args, `--data=${join(this.dir, "data")}`], { stdio: ["ignore", "pipe", "ignore"] });
    let out = "";
    run.stdout.on("data", (data) => (out += data));
    const [code] = await once(run, "close");
    if (code !== 0) throw new Error(`${args.join(" ")}: exit code ${code}`);
    return out.trim();
  }

  async post(path, body, headers = {}) {
    const answer = await fetch(this.url + path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }
}

// listen serves HTTP with a function until the test ends, and returns the URL.
export async function listen(t, serve) {
  const server = createServer(serve);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

// agent registers an external agent that answers with a function: answer(message, send, request).
export async function agent(t, server, id, answer, headers) {
  const endpoint = await listen(t, async (q, w) => {
    if (!q.url.endsWith("/invoke")) return w.end();
    let body = "";
    for await (const part of q) body += part;
    w.writeHead(200, { "Content-Type": "text/event-stream" });
    const send = (event, data) => w.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
    await answer(JSON.parse(body).input_message.content, send, q);
    send("done", {});
    w.end();
  });
  await server.post("/v1/agents/register", { agent_id: id, endpoint, retry: "safe" }, headers);
}

// cutter forwards connections to a server, and cuts each at a byte of the answer that next() names; undefined: none.
export async function cutter(t, url, next) {
  const { hostname, port } = new URL(url);
  const cuts = { count: 0 };
  const server = createTCP((client) => {
    const up = connect(Number(port), hostname);
    const end = () => {
      client.destroy();
      up.destroy();
    };
    let left = next() ?? Infinity;
    client.on("error", end).on("close", end).on("data", (data) => up.write(data));
    up.on("error", end).on("close", end).on("data", (data) => {
      client.write(data.subarray(0, Math.min(data.length, left)));
      left -= data.length;
      if (left <= 0) {
        cuts.count++;
        client.resetAndDestroy ? client.end() : client.destroy();
        up.destroy();
      }
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  cuts.url = `http://127.0.0.1:${server.address().port}`;
  return cuts;
}
