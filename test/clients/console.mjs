// SPDX-License-Identifier: Apache-2.0
// Drives the console in a browser: node console.mjs URL KEY CHROMIUM FOLDER. The folder gets screenshots.
import { mkdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [url, key, executablePath, shots] = process.argv.slice(2);
mkdirSync(shots, { recursive: true });
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = async (word) => {
  console.log(word);
  await input.next();
};
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light", reducedMotion: "reduce" });
const page = await context.newPage();
page.setDefaultTimeout(20000);
const complaints = [];
page.on("pageerror", (e) => complaints.push(e.message));
page.on("console", (m) => {
  if (m.type() === "error" && !/40[0-9] |ERR_CONNECTION|ERR_INCOMPLETE/.test(m.text())) complaints.push(m.text());
});
page.on("request", (r) => new URL(r.url()).origin === new URL(url).origin || complaints.push(`a request to ${r.url()}`));
page.on("dialog", (d) => complaints.push(`a script ran: ${d.message()}`));
const shot = (name) => page.screenshot({ path: `${shots}/console-${name}.png` });
const want = (what, ok) => {
  if (!ok) throw new Error(`want ${what}`);
};
const api = async (method, path, body, user) => {
  const answer = await fetch(url + path, { method, headers: { Authorization: `Bearer ${key}`, ...(body ? { "Content-Type": "application/json", Prefer: "respond-async" } : {}), ...(user ? { "X-User-Id": user } : {}) }, body: body && JSON.stringify(body) });
  const decoded = await answer.json();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${decoded.detail}`);
  return decoded;
};
const say = (agent, content, session) => api("POST", `/v1/agents/${agent}/messages`, { content, session_id: session });
const script = "<img src=x onerror=alert(1)><script>alert(2)</script>";

try {
  await page.goto(`${url}/console`);
  await page.waitForSelector("#key-dialog[open]");
  await page.fill("#key", "troupe_wrong");
  await page.press("#key", "Enter");
  await page.waitForFunction(() => document.querySelector("#key-error").textContent.length > 0);
  await page.fill("#key", key);
  await page.press("#key", "Enter");
  await page.waitForSelector("#status[data-state=ready]");
  await page.waitForSelector(".empty");

  // An approval comes by itself, with exact arguments; what an agent has chosen is text.
  await api("POST", "/v1/agents", { name: "marked", description: script, prompt: script });
  await say("concierge", `use user.pay {"amount": 9007199254740993, "note": "${script.replaceAll('"', "'")}", "more": "${script}"}`, "s-1");
  await page.waitForSelector(".card .args");
  const args = await page.innerText(".card .args");
  want(`exact arguments, got ${args}`, args.includes("9007199254740993") && args.includes("onerror=alert(1)"));
  want("no element made of arguments", (await page.locator(".card img, .card script").count()) === 0);
  await page.click(".card summary");
  await page.waitForSelector(".said");
  await shot("inbox");

  // A decision taken elsewhere turns the card.
  const [waiting] = (await api("GET", "/v1/approvals?user=*")).approvals;
  await api("POST", `/v1/approvals/${waiting.approval_id}:decide`, { decision: "reject", reason: `not ${script}` });
  await page.waitForFunction(() => /^Rejected by /.test(document.querySelector(".card-result")?.textContent ?? ""));
  want("no buttons after the decision", (await page.locator(".card .form").count()) === 0);
  await shot("elsewhere");

  // The keyboard reaches the next card, and decides.
  await say("concierge", 'use user.pay {"amount": 20}', "s-2");
  await page.waitForFunction(() => [...document.querySelectorAll(".item")].some((i) => i.textContent.includes("expires")));
  await page.locator("#view").focus();
  await page.keyboard.press("j");
  await page.waitForFunction(() => document.querySelector(".card .args")?.textContent.includes("20"));
  await page.focus(".card .form input");
  await page.keyboard.type("asked Anna");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /^Approved by .*: asked Anna/.test(document.querySelector(".card-result")?.textContent ?? ""));

  // Runs, with filters in the address.
  await page.keyboard.press("Escape");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("2");
  await page.waitForSelector("tr.link");
  await page.fill("input[name=session_id]", "s-2");
  await page.press("input[name=session_id]", "Enter");
  await page.waitForFunction(() => location.hash.includes("session_id=s-2") && document.querySelectorAll("tr.link").length === 1);
  await shot("runs");
  await page.locator("tr.link").focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector(".event");
  want("the tool", /Tools \(1\)/.test(await page.innerText(".pick")));

  // The slider shows the state at an earlier event.
  await page.locator(".replay input").fill("3");
  await page.waitForFunction(() => document.querySelector(".replay .muted").textContent.startsWith("event 3 of"));
  want("the state then", (await page.innerText("h1 .chip")) === "running" && (await page.locator(".event").count()) === 3);
  await shot("replay");
  await page.getByRole("button", { name: "Latest" }).click();

  // A run is followed over a kill -9, each event once.
  const held = await say("streamer", "30", "s-3");
  await page.goto(`${url}/console#run/${held.run_id}/default`);
  await page.waitForFunction(() => document.querySelectorAll(".event").length > 2);
  await ask("restart");
  await page.waitForFunction(() => document.querySelector("h1 .chip")?.textContent === "done", null, { timeout: 30000 });
  const shown = Number(/of ([\d,]+)/.exec(await page.innerText(".replay .muted"))[1].replaceAll(",", ""));
  const { events } = await api("GET", `/v1/runs/${held.run_id}/events?limit=1000`);
  want(`${events.length} events, got ${shown}`, shown === events.length);

  // A long run opens within a second and scrolls.
  const long = await say("streamer", "states 10000", "s-4");
  for (let run; run?.status !== "DONE"; ) {
    await page.waitForTimeout(1000);
    [run] = (await api("GET", "/v1/runs?session_id=s-4")).runs;
    want(`the long run done, got ${run.error?.detail}`, !["FAILED", "CANCELLED"].includes(run.status));
  }
  const asked = Date.now();
  const plain = await fetch(`${url}/v1/runs/${long.run_id}/events?tree=1`, { headers: { Authorization: `Bearer ${key}`, Accept: "text/event-stream" } });
  await plain.text();
  const served = Date.now() - asked;
  const began = Date.now();
  await page.goto(`${url}/console#run/${long.run_id}/default`);
  await page.waitForFunction(() => document.querySelectorAll(".event").length > 10);
  const opened = Date.now() - began;
  await page.waitForFunction(() => document.querySelector("h1 .chip")?.textContent === "done" && /of 10,0\d\d/.test(document.querySelector(".replay .muted").textContent));
  const complete = Date.now() - began;
  await page.locator(".events").evaluate((e) => (e.scrollTop = e.scrollHeight / 2));
  await page.waitForFunction(() => document.querySelectorAll(".event").length > 5);
  want("few elements", (await page.locator(".event").count()) < 100);
  await shot("long");

  for (const name of ["parts", "numbers"]) {
    await page.goto(`${url}/console#${name}`);
    await page.waitForFunction((n) => document.querySelector(n === "parts" ? "section table" : ".tile"), name);
    if (name === "numbers") {
      await page.selectOption("[aria-label='Group by']", "user");
      await page.waitForFunction(() => document.querySelector(".view section table, #view section table")?.textContent.startsWith("User"));
      const costs = await page.locator("section").first().locator("tbody tr").allInnerTexts();
      want(`a row of each user and their sum, got ${costs}`, costs.length >= 2 && costs.at(-1).startsWith("Total"));
    }
    want("no element made of texts", (await page.locator(".view img, .view script").count()) === 0);
    await shot(name);
  }
  await context.close();

  const dark = await (await browser.newContext({ viewport: { width: 390, height: 780 }, colorScheme: "dark", reducedMotion: "reduce" })).newPage();
  await dark.addInitScript((k) => sessionStorage.setItem("troupe.key", k), key);
  await say("concierge", 'use user.pay {"amount": 21}', "s-5");
  for (const name of ["inbox", "runs", "parts", "numbers"]) {
    await dark.goto(`${url}/console#${name}`);
    await dark.waitForSelector("#status[data-state=ready]");
    await dark.waitForFunction((n) => document.querySelector({ inbox: ".card", runs: "tr.link", parts: "section table", numbers: ".tile" }[n]), name);
    const wide = await dark.evaluate(() => document.documentElement.scrollWidth);
    want(`${name} within 390 px, got ${wide}`, wide <= 390);
    await dark.screenshot({ path: `${shots}/console-${name}-390.png` });
  }
  want(`no complaints, got ${complaints.join("; ")}`, complaints.length === 0);
  console.log(`a run of 10,000 events opened in ${opened} ms, and was complete after ${complete} ms; a client without a page reads them in ${served} ms`);
} catch (e) {
  await page.screenshot({ path: `${shots}/console-failed.png` }).catch(() => {});
  throw e;
} finally {
  await browser.close();
}
process.exit(0); // standard input is open
