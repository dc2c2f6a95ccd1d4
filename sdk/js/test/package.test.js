// SPDX-License-Identifier: Apache-2.0
// The package as it is installed: its types, its hints, and the examples of its page.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { codes } from "../src/errors.js";
import * as all from "../src/troupe.js";
import { Server } from "./server.js";

const root = fileURLToPath(new URL("..", import.meta.url));
const text = (...path) => readFile(join(root, ...path), "utf8");

// declared returns the members of a class or an object type in the types, by the line that begins it.
function declared(types, head, indent) {
  const block = types.slice(types.indexOf(head)).split("\n").slice(1);
  return block.slice(0, block.indexOf(`${indent.slice(2)}}${indent === "  " ? "" : ";"}`)).map((line) => line.match(new RegExp(`^${indent}(?:readonly )?(\\w+)[(:<]`))?.[1]).filter((name) => name && name !== "constructor");
}

test("the types declare what is there, and each method is declared", async () => {
  const types = await text("src", "troupe.d.ts");
  const troupe = new all.Troupe();
  const values = { Troupe: troupe, TroupeError: new all.TroupeError("timeout", "x"), EventStream: troupe.runs.events("r"), Channel: troupe.channel({ WebSocket: class {} }) };
  assert.deepEqual(Object.keys(all).sort(), Object.keys(values).sort());
  const methods = (value) => Object.getOwnPropertyNames(Object.getPrototypeOf(value)).filter((name) => name !== "constructor");
  for (const [name, value] of Object.entries(values)) {
    const names = declared(types, `export class ${name} `, "  ");
    assert.ok(names.length > 5, `${name}: ${names}`);
    for (const member of names) assert.ok(member in value, `${name}.${member} is declared and absent`);
    if (name !== "Channel") for (const member of methods(value)) assert.ok(names.includes(member), `${name}.${member} is not declared`);
  }
  for (const part of ["agents", "approvals", "runs", "sessions"]) {
    assert.deepEqual(declared(types, `  readonly ${part}: {`, "    ").sort(), methods(troupe[part]).sort(), part);
  }
});

test("each code of the documentation has a hint, and no other", async () => {
  const page = await readFile(join(root, "../../docs/errors.md"), "utf8");
  const [reasons, rest] = page.split("## Meaning and remedy");
  const found = new Set();
  for (const row of reasons.matchAll(/^\| `\w+` \|(?:[^|]*\|){3} (\w+) \|/gm)) found.add(row[1]);
  for (const row of rest.matchAll(/^\| `(\w+)` \| \d{3} \|/gm)) found.add(row[1]);
  assert.ok(found.size > 40);
  const own = ["server_unreachable", "not_an_answer", "run_open", "websocket_missing"];
  assert.deepEqual(codes().filter((c) => !own.includes(c)).sort(), [...found].sort());
});

test("the package has no dependency and no build step", async () => {
  const spec = JSON.parse(await text("package.json"));
  assert.equal(spec.dependencies ?? spec.devDependencies ?? spec.peerDependencies ?? spec.scripts, undefined);
  for (const file of await readdir(join(root, "src"))) {
    for (const [, from] of (await text("src", file)).matchAll(/(?:from|import\()\s*"([^"]*)"/g)) assert.match(from, /^\.\/\w+\.js$/, `${file} imports ${from}`);
  }
});

test("the examples of the page run with the package as it is installed", async (t) => {
  const server = await Server.start(t);
  await server.post("/v1/agents", { name: "helper" });
  const dir = await mkdtemp(join(tmpdir(), "troupe-js-"));
  t.after(() => rm(dir, { recursive: true, force: true }));
  await mkdir(join(dir, "node_modules"));
  await symlink(root, join(dir, "node_modules", "troupe-client"), "dir");
  const blocks = [...(await text("README.md")).matchAll(/^```js\n(.*?)^```/gms)].map((m) => m[1].replaceAll("http://127.0.0.1:8283", server.url));
  const want = [/^hello [0-9a-f-]{36}\ngoodbye\ngoodbye\nagent_not_found List/, /^hello\n$/];
  assert.equal(blocks.length, want.length);
  for (const [i, block] of blocks.entries()) {
    const file = join(dir, `example${i}.mjs`);
    await writeFile(file, block);
    const run = spawn(process.execPath, ["--experimental-websocket", "--no-warnings", file], { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, TROUPE_KEY: "" } });
    let out = "";
    run.stdout.on("data", (data) => (out += data));
    const [code] = await once(run, "close");
    assert.equal(code, 0);
    assert.match(out, want[i]);
  }
});
