// SPDX-License-Identifier: Apache-2.0
// The package openai asks the models of a server. It ends with an error if an answer is not as expected.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, key] = process.argv.slice(2);
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
