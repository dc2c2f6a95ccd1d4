// SPDX-License-Identifier: Apache-2.0
// The package openai asks the models of a server. It ends with an error if an answer is not as expected.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, key, callKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });
const ask = (content, fields) => client.chat.completions.create({ model: "scripted", messages: [{ role: "user", content }], ...fields });

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ["scripted"]);

const plain = await ask("say hello");
assert.equal(plain.choices[0].message.content, "hello");
assert.ok(plain._request_id);

const tools = [{ type: "function", function: { name: "add", parameters: { type: "object" } } }];
const called = await ask('use add {"a": 1}', { tools });
assert.deepEqual(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments), { a: 1 });

let text = "", usage;
for await (const chunk of await ask("say hello", { stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage;
}
assert.equal(text, "hello");
assert.deepEqual(usage, plain.usage);

await assert.rejects(ask("hi", { model: "gpt-x" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found" && e.param === "model");
await assert.rejects(ask("hi", { messages: [] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "messages");
const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong" });
await assert.rejects(stranger.models.list(), (e) => e instanceof OpenAI.AuthenticationError);

// Agents are models at another base URL, for a key of another scope.
const made = await fetch(`${url}/v1/agents`, { method: "POST", headers: { authorization: `Bearer ${key}`, "content-type": "application/json" }, body: '{"name":"scribe"}' });
assert.equal(made.status, 201);
const agents = new OpenAI({ baseURL: `${url}/v1/openai`, apiKey: callKey });
const listed = [];
for await (const model of agents.models.list()) listed.push(model.id);
assert.ok(listed.includes("scribe"));

const messages = [{ role: "user", content: "say one two" }];
const first = await agents.chat.completions.create({ model: "scribe", messages });
messages.push(first.choices[0].message, { role: "user", content: "list my messages" });
let answer = "", finish;
for await (const chunk of await agents.chat.completions.create({ model: "scribe", messages, stream: true })) {
  answer += chunk.choices[0].delta.content ?? "";
  finish = chunk.choices[0].finish_reason;
}
assert.equal(first.choices[0].message.content, "one two");
assert.equal(answer, "1. say one two");
assert.equal(finish, "stop");
await assert.rejects(agents.chat.completions.create({ model: "nobody", messages }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
const wrongScope = new OpenAI({ baseURL: `${url}/v1/openai`, apiKey: key });
await assert.rejects(wrongScope.models.list(), (e) => e instanceof OpenAI.PermissionDeniedError);
