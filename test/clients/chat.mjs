// SPDX-License-Identifier: Apache-2.0
// Drives the chat page in a browser: node chat.mjs URL KEY CHROMIUM FOLDER FOREIGN. The folder gets screenshots; FOREIGN
// lists answers of agents that others send.
import { mkdirSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [url, key, executablePath, shots, foreign] = process.argv.slice(2);
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
  // Requests without a key are refused, and so are connections to a server that was killed.
  if (m.type() === "error" && !/401|409 |ERR_CONNECTION|WebSocket connection/.test(m.text())) complaints.push(m.text());
});
const shot = (name) => page.screenshot({ path: `${shots}/${name}.png` });
const say = async (agent, text) => {
  await page.selectOption("#agent", agent);
  await page.fill("#composer", text);
  await page.press("#composer", "Enter");
};
const idle = () => page.waitForFunction(() => !document.querySelector(".spinner"));
const ready = () => page.waitForSelector('#status[data-state="ready"]');
const answers = () => page.locator(".answer").allInnerTexts();
const want = (what, ok) => {
  if (!ok) throw new Error(`want ${what}`);
};

try {
  await page.goto(`${url}/chat`);
  await page.waitForSelector("#key-dialog[open]");
  await page.fill("#key", "troupe_wrong");
  await page.press("#key", "Enter");
  await page.waitForFunction(() => document.querySelector("#key-error").textContent.includes("key"));
  await shot("key");
  await page.fill("#key", key);
  await page.press("#key", "Enter");
  await ready();
  await shot("welcome");
  const offered = await page.locator("#agent option").evaluateAll((all) => all.map((o) => o.textContent));
  want(`the agents of the configuration in its order, got ${offered}`, offered.join() === "streamer,concierge,foreign");
  want("the default agent", (await page.locator("#agent option:checked").innerText()) === "concierge");
  want("the title of the configuration", (await page.innerText("#brand")) === "Front desk" && (await page.title()).endsWith("Front desk"));

  await say("concierge", "say **bold** and `code`, [a link](https://example.com/) [no link](javascript:alert(1)) <img src=x onerror=alert(1)>");
  await idle();
  want("a safe rendering", await page.evaluate(() => {
    const a = [...document.querySelectorAll(".answer")].at(-1);
    return a.querySelector("strong").textContent === "bold" && a.querySelector("code").textContent === "code" && a.querySelectorAll("a").length === 1 && !a.querySelector("img") && a.textContent.includes("<img src=x");
  }));

  await say("concierge", 'use user.ask {"question": "Which room do you prefer?", "choices": ["sea view", "garden"]}');
  await page.waitForSelector(".card.question .choice");
  await say("concierge", "say queued");
  await page.waitForFunction(() => [...document.querySelectorAll(".run")].at(-1).querySelector(".phase").textContent === "Waiting for the answer above");
  await shot("question");
  await page.getByRole("button", { name: "garden" }).click();
  await idle();
  want("the message behind the question answered", (await answers()).at(-1).includes("queued"));
  want("the answer of the person", (await answers()).at(-2).includes("garden"));

  await say("concierge", 'use user.pay {"amount": 20}');
  await page.waitForSelector(".card.approval .card-form");
  const argsOpen = () => page.waitForFunction(() => document.querySelector(".card.approval details[open] .args")?.textContent.includes("20"));
  await argsOpen();
  await page.reload(); // also for who comes later
  await ready();
  await argsOpen();
  await shot("approval");
  await page.fill(".card.approval input", "asked Anna");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector(".card.question:not([data-state]) textarea");
  await page.fill(".card.question:not([data-state]) textarea", '{"paid": true}');
  await page.press(".card.question:not([data-state]) textarea", "Enter");
  await idle();
  want("the decision", (await page.locator(".card.approval .card-result").innerText()).includes("asked Anna"));
  want("the result", (await answers()).at(-1).includes("paid"));

  await say("concierge", `use user.pay {"amount": 21, "note": "${"long ".repeat(500)}"}`);
  await page.waitForFunction(() => /Arguments \(2,5\d\d characters\)/.test([...document.querySelectorAll(".card.approval summary")].at(-1).textContent));
  want("long arguments closed", (await page.locator(".card.approval details[open]").count()) === 0);
  await page.getByRole("button", { name: "Reject" }).click();
  await idle();
  want("the rejection", (await page.locator(".card.approval .card-result").last().innerText()).includes("Rejected"));

  const words = Array.from({ length: 30 }, (_, i) => `word${i}`).join(" ");
  await say("concierge", `say ${words}`);
  await page.waitForFunction(() => [...document.querySelectorAll(".answer")].at(-1).textContent.includes("word1"));
  await ask("restart");
  await ready();
  await idle();
  want("the whole answer once, after a kill -9", (await answers()).at(-1).trim() === words);

  await say("streamer", "endless");
  await page.waitForFunction(() => [...document.querySelectorAll(".answer")].at(-1).textContent.includes("first piece"));
  await page.click("#stop");
  await page.waitForSelector(".run .notice");
  await idle();

  // The controls fit a narrow screen while a run is open.
  await say("streamer", "endless");
  await page.waitForSelector("#stop:not([hidden])");
  for (const width of [320, 360, 390, 406]) {
    await page.setViewportSize({ width, height: 700 });
    const cut = await page.evaluate(() => {
      const box = document.querySelector(".composer-box").getBoundingClientRect();
      return ["agent", "stop", "send"].filter((id) => {
        const r = document.getElementById(id).getBoundingClientRect();
        return r.width < 44 || r.left < box.left || r.right > box.right;
      });
    });
    want(`no control cut off at ${width} px, got ${cut}`, cut.length === 0);
    if (width === 320) await shot("open-320");
  }
  await page.setViewportSize({ width: 1280, height: 860 });
  await page.click("#stop");
  await idle();

  // A block of code is copied, also where the page has no navigator.clipboard. Columns are aligned.
  await page.click("#new-chat");
  await say("streamer", "code");
  await idle();
  await page.evaluate(() => Object.defineProperty(navigator, "clipboard", { value: undefined, configurable: true }));
  await page.click(".code-block button");
  await page.waitForFunction(() => document.querySelector(".code-block button").textContent === "Copied");
  await page.focus("#composer");
  await page.keyboard.press("Control+v");
  want("the code copied", (await page.inputValue("#composer")) === "let a = 1;");
  want("the column aligned", (await page.locator(".answer td").last().evaluate((e) => getComputedStyle(e).textAlign)) === "right");
  want("no tokens", !(await page.locator(".tokens").first().isVisible()));

  // A failure is a sentence; what the server says is behind a click. The message can be sent again.
  await say("streamer", "fail");
  await page.waitForSelector(".notice.failed");
  await shot("failure");
  const notice = page.locator(".notice.failed").first();
  want(`a sentence, got ${await notice.innerText()}`, !/boom_7|hang up|_/.test(await notice.innerText()));
  await notice.locator("summary").click();
  want("the details", /hang up/.test(await notice.innerText()));
  await notice.getByRole("button", { name: "Retry" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".notice.failed").length === 2 && !document.querySelector(".spinner"));
  want("the message again", (await page.locator(".bubble").last().innerText()) === "fail");

  // The answers of agents that others send are the texts that they mean, or a failure.
  await page.click("#new-chat");
  for (const { name, text } of JSON.parse(readFileSync(foreign, "utf8"))) {
    await say("foreign", `foreign ${name}`);
    await page.waitForFunction((n) => [...document.querySelectorAll(".bubble")].at(-1)?.textContent === n && !document.querySelector(".spinner"), `foreign ${name}`);
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    const run = page.locator(".run").last();
    const answer = (await run.locator(".answer").allInnerTexts()).join("").trim();
    const failed = await run.locator(".notice.failed").count();
    want(`${name}: ${text ?? "a failure"}, got ${answer} and ${failed} failures`, text === null ? failed === 1 : failed === 0 && answer === text.trim());
  }
  await page.locator(".session", { hasText: "code" }).first().click();
  await page.waitForFunction(() => document.querySelectorAll(".bubble").length === 3 && !document.querySelector(".spinner"));

  // What is sent while the server is away is not lost, over a new document too, nor is what is only typed.
  await ask("stop");
  await page.waitForSelector('#status[data-state="waiting"]');
  await say("concierge", "say sent later");
  await page.waitForFunction(() => [...document.querySelectorAll(".phase")].at(-1)?.textContent === "Not sent yet");
  await page.fill("#composer", "half a thought");
  await shot("unsent");
  const place = page.url();
  await page.goto("about:blank");
  await ask("start");
  await page.goto(place);
  await ready();
  await page.waitForFunction(() => [...document.querySelectorAll(".answer")].at(-1)?.textContent.includes("sent later") && !document.querySelector(".spinner"));
  want("the message once", (await page.locator(".bubble").allInnerTexts()).join() === "code,fail,fail,say sent later");
  want("the draft", (await page.inputValue("#composer")) === "half a thought");
  await page.click("#new-chat");
  want("the draft in its conversation only", (await page.inputValue("#composer")) === "");
  await page.reload(); // nothing is sent again
  await ready();
  await page.goBack();
  await page.waitForFunction(() => document.querySelectorAll(".bubble").length === 4 && !document.querySelector(".spinner"));
  want("the draft again", (await page.inputValue("#composer")) === "half a thought");
  await page.fill("#composer", "");
  await page.locator(".session").last().click();
  await page.waitForFunction(() => document.querySelectorAll(".run").length === 8 && !document.querySelector(".spinner"));

  const shown = async () => JSON.stringify(await page.locator(".bubble, .answer, .run .notice, .card.approval").allInnerTexts());
  const before = await shown();
  await page.reload();
  await ready();
  await page.waitForFunction((n) => document.querySelectorAll(".run").length === n && !document.querySelector(".spinner"), 8);
  const after = await shown();
  want(`the same conversation after a reload as before:\n${before}\ngot\n${after}`, after === before);
  await shot("light");
  await page.emulateMedia({ colorScheme: "dark" });
  await shot("dark");
  await page.setViewportSize({ width: 390, height: 844 });
  await shot("dark-390");
  want("no horizontal scrolling at 390 px", await page.evaluate(() => document.documentElement.scrollWidth <= 390));
  await page.click("#open-sidebar");
  await shot("sidebar-390");
  await page.keyboard.press("Escape");
  await page.emulateMedia({ colorScheme: "light" });
  await shot("light-390");

  await page.setViewportSize({ width: 1280, height: 860 });
  await page.waitForFunction(() => !document.querySelector("#sidebar").inert); // it takes no focus before
  await page.focus("#new-chat");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#welcome:not([hidden])");
  await page.keyboard.type("say by keyboard");
  await page.selectOption("#agent", "concierge");
  await page.press("#composer", "Enter");
  await idle();
  want("the answer in a second conversation", (await answers()).at(-1).includes("by keyboard") && (await page.locator(".session").count()) === 4);

  // The last answer is generated again, with the whole message also where the page has its beginning only, and with a
  // second press if steps may be taken again.
  const press = (name) => page.locator(".run").last().getByRole("button", { name }).click();
  const runs = (n) => page.waitForFunction((want) => document.querySelectorAll(".run").length === want && !document.querySelector(".spinner"), n);
  await press("Regenerate");
  await runs(2);
  want("the message again", (await page.locator(".bubble").allInnerTexts()).join() === "say by keyboard,say by keyboard");
  want("one Regenerate, at the last answer", (await page.getByRole("button", { name: "Regenerate" }).count()) === 1);
  await say("concierge", `say ${"long".repeat(1500)}`);
  await runs(3);
  await page.reload();
  await ready();
  await runs(3);
  await press("Regenerate");
  await runs(4);
  want("the whole message again", (await answers()).at(-1).trim() === "long".repeat(1500));
  await say("concierge", 'use user.ask {"question": "Again?"}');
  await page.waitForSelector(".card.question .choice, .card.question textarea");
  await page.click("#stop");
  await page.waitForSelector(".run:last-child .notice");
  await shot("stopped");
  await press("Send again");
  await page.waitForFunction(() => document.querySelectorAll(".run").length === 6 && document.querySelector(".run:last-child .card textarea"));
  await page.fill(".run:last-child .card textarea", "yes");
  await page.press(".run:last-child .card textarea", "Enter");
  await runs(6);
  await press("Regenerate");
  want("steps named first", /Steps .* may be taken again/.test(await page.locator(".run").last().innerText()) && (await page.locator(".run").count()) === 6);
  await shot("regenerate");
  await press("Send again");
  await page.waitForFunction(() => document.querySelectorAll(".run").length === 7);
  await page.click("#stop");
  await idle();

  // A link whose name cannot be decoded is none. (Another document, so that the page starts again.)
  await page.goto("about:blank");
  await page.goto(`${url}/chat#%zz`);
  await ready();
  await page.waitForSelector("#welcome:not([hidden])");

  // More conversations than a connection follows: the first one is read again, and shown once.
  const api = async (method, path, body) => {
    const r = await fetch(url + path, { method, headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" }, body: body && JSON.stringify(body) });
    want(`${method} ${path} accepted, got ${r.status}`, r.ok);
    return r.json().catch(() => ({}));
  };
  await say("concierge", "say the first answer");
  await idle();
  const first = await page.evaluate(() => decodeURIComponent(location.hash.slice(1)));
  for (let i = 0; i < 105; i++) await api("POST", "/v1/sessions", { session_id: `many-${String(i).padStart(3, "0")}`, title: `Conversation ${i}` });
  await page.reload();
  await ready();
  const open = async (session) => {
    await page.click(`[data-session="${session}"]`);
    await page.waitForSelector(`[data-session="${session}"][aria-current]`);
  };
  await page.waitForSelector(".answer");
  for (let i = 104; i > 43; i--) await open(`many-${String(i).padStart(3, "0")}`);
  await ready();
  await open(first);
  await page.waitForSelector(".answer");
  await say("concierge", "say once more");
  await page.waitForFunction(() => document.querySelectorAll(".run").length === 2 && !document.querySelector(".spinner"));
  want(`each answer once, got ${await answers()}`, (await answers()).join("|") === "the first answer|once more");

  // Back and a link switch conversations. The list has more than a page.
  await page.goBack();
  await page.waitForSelector('[data-session="many-044"][aria-current]');
  await page.goForward();
  await page.waitForSelector(`[data-session="${first}"][aria-current]`);
  await page.evaluate(() => (location.hash = "#many-050"));
  await page.waitForSelector('[data-session="many-050"][aria-current]');
  want("one page of the list", (await page.locator(".session").count()) < 110);
  await page.click("#more");
  await page.waitForFunction(() => document.querySelectorAll(".session").length === 110 && document.querySelector("#more").hidden);

  await page.click("#rename");
  await page.fill("#new-title", "Renamed here");
  await page.press("#new-title", "Enter");
  await page.waitForFunction(() => document.querySelector("#title").textContent === "Renamed here" && !document.querySelector("dialog[open]"));
  want("the title stored", (await api("GET", "/v1/sessions/many-050")).title === "Renamed here");
  await page.click("#delete");
  await page.click("#delete-dialog [data-close]");
  want("the conversation kept", (await api("GET", "/v1/sessions/many-050")).session_id === "many-050");
  await say("streamer", "endless");
  await page.waitForFunction(() => [...document.querySelectorAll(".answer")].at(-1)?.textContent.includes("first piece"));
  await page.focus("#delete");
  await page.keyboard.press("Enter");
  await page.click("#delete-confirm");
  await page.waitForFunction(() => document.querySelector("#delete-confirm").textContent === "Stop and delete");
  await shot("delete");
  await page.click("#delete-confirm");
  await page.waitForSelector("#notice:not([hidden])");
  want("the text about the own deletion", (await page.innerText("#notice")) === "The conversation was deleted.");
  want("the dialog closed and the conversation gone", (await page.locator("dialog[open]").count()) === 0 && (await page.locator('[data-session="many-050"]').count()) === 0);
  want("the address without it", !page.url().includes("many-050"));
  await open(first);

  // A conversation that was deleted elsewhere, which the page learns at once: the list loses it, what was typed
  // is kept, and the message begins another. A dialog about it closes.
  await open("many-051");
  await page.click("#rename");
  await api("DELETE", "/v1/sessions/many-051");
  await page.waitForSelector("#notice:not([hidden])");
  want("the dialog about it closed", (await page.locator("dialog[open]").count()) === 0);
  want("it dropped from the list", (await page.locator('[data-session="many-051"]').count()) === 0);
  await open(first);
  await page.waitForSelector(".answer");
  await page.selectOption("#agent", "concierge");
  await page.fill("#composer", "say it again");
  await api("DELETE", `/v1/sessions/${first}`);
  await page.waitForSelector("#notice:not([hidden])");
  want("a text for a person", /deleted/.test(await page.innerText("#notice")) && !(await page.innerText("body")).includes("--keep"));
  want("the conversation dropped from the list", (await page.locator(`[data-session="${first}"]`).count()) === 0);
  want("the message kept", (await page.inputValue("#composer")) === "say it again");
  await page.press("#composer", "Enter");
  await page.waitForFunction(() => document.querySelector(".answer")?.textContent.includes("it again") && !document.querySelector(".spinner"));
  await page.goto("about:blank");
  await page.goto(`${url}/chat#${first}`);
  await page.waitForSelector("#notice:not([hidden])");
  want("a link to it dropped", !page.url().includes(first) && (await page.locator(`[data-session="${first}"]`).count()) === 0);

  want(`no complaints, got ${complaints}`, complaints.length === 0);
} catch (e) {
  await shot("failed");
  console.error(e.message, complaints);
  process.exitCode = 1;
}
await browser.close();
input.return();
process.stdin.destroy();
